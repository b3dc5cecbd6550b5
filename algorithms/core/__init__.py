"""What an algorithm is: messages, client data, hyperparameters, trees of tensors."""
