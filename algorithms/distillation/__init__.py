"""Knowledge distillation, centralised and federated."""
