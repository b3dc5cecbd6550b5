"""Reading runs and comparing experiments."""
