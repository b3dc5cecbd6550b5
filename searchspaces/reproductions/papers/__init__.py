"""The published tables, one module per source."""
