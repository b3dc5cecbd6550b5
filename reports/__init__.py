"""Reports on runs: an HTML page, and comparisons that show which differences between experiments matter."""
