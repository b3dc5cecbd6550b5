"""Execution of a round, from the server to one device, without Ray."""
