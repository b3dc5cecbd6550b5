"""Features, sub-models and hypernetworks of models."""
