"""The next-character LSTM."""

import torch
from torch import Tensor, nn


class CharLSTMNet(nn.Module):
    """Embedding, stacked LSTM, linear on the last position. tokens (B, L) int64 -> logits (B, classes).

    It cannot be batched over clients at a profit: torch's LSTM kernel falls back to a loop under vmap, and a loop over
    cells in Python is slower still.
    """

    no_vmap = "torch's LSTM kernel has no batching rule: under vmap it falls back to a slow loop"

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int, classes: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(tokens))
        return self.output(torch.select(hidden, 1, -1))
