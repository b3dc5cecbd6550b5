"""Runtime processes on Ray: contains everything in the platform that imports Ray."""
