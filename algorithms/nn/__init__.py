"""Views of networks that methods need: features, sub-models, hypernetworks."""
