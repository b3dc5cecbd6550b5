"""The same processes on Ray: everything in the platform that imports it."""
