"""Personalised federated learning."""
