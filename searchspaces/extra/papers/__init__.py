"""Published tables and figures of each source."""
