"""User-level differential privacy: accounting."""
