"""Terminal, notebook and plots."""
