"""Rules by which the server combines client updates."""
