"""What runs have left, for people: one page to look at, and which differences between experiments matter."""
