"""Learning from noisy labels."""
