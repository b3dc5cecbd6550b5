"""Results of searches: trials, tables and figures."""
