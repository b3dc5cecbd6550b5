"""Local and server optimisation, and derivatives."""
