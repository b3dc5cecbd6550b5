"""The page of a report."""
