"""Search spaces: the section of the file, configurations, published spaces."""
