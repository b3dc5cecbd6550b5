"""Next-character LSTM."""

from collections.abc import Callable
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.core.torch_private import is_transformed
from hedgerow.platform.models.model import Depth, Model, check_vocabulary


class CharLSTM(Model):
    """LEAF's next-character model: embedding, stacked LSTM, linear layer on the last position.

    133520 parameters with 80 characters: torch's LSTM has two bias vectors per layer.
    """

    takes: ClassVar[tuple[str, ...]] = ("token sequences",)

    vocabulary: int | None = Field(
        None,
        ge=2,
        description="number of distinct tokens; null: that of classes, or of tokens in the data if it is larger",
    )
    embedding: int = Field(8, ge=1, description="dimension of a token's embedding")
    hidden: int = Field(100, ge=1, description="units per LSTM layer")
    layers: Depth = Field(2, description="number of LSTM layers")
    predict: Literal["last", "all"] = Field(
        "last", description="positions with an output: the last one, or all, for `task.loss: next_token`"
    )

    def for_tokens(self, classes: int, count: Callable[[], int]) -> Self:
        check_vocabulary(self.vocabulary, count())
        return self.model_copy(update={"vocabulary": self.vocabulary or max(classes, count())})

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        every = self.predict == "all"
        return CharLSTMNet(self.vocabulary or classes, self.embedding, self.hidden, self.layers, classes, every)


class CharLSTMNet(nn.Module):
    """Embedding, stacked LSTM, linear layer on the last position. tokens (B, L) int64 -> logits (B, classes); with
    `every` on all positions, (B, L, classes).

    Plain autograd uses torch's LSTM kernel. The kernel has neither a batching rule nor, on CPUs, forward derivatives.
    Under a transform of torch.func (vmap, grad, jvp), the same recurrence runs cell by cell, with the same parameters
    and the same results up to 1e-5.
    """

    no_vmap = None  # contains an nn.LSTM, but can be batched

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int, classes: int, every: bool = False):
        super().__init__()
        self.every = every
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.embedding(tokens)
        # Tests the stack of active transforms, not the type of a tensor: any parameter may be the batched one.
        hidden = lstm_cells(self.lstm, embedded) if is_transformed() else self.lstm(embedded)[0]
        return self.output(hidden if self.every else hidden[:, -1])


def lstm_cells(lstm: nn.LSTM, x: Tensor) -> Tensor:
    """Equivalent of `lstm(x)[0]` in operations that can be batched and differentiated any number of times.

    lstm: unidirectional, batch first, with biases. x (B, L, features) -> hidden states of the last layer (B, L, units).
    """
    inputs = x.transpose(0, 1)
    for layer in range(lstm.num_layers):
        w_input, w_hidden, b_input, b_hidden = (
            getattr(lstm, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        from_input = F.linear(inputs, w_input, b_input + b_hidden)
        hidden = cell = torch.zeros_like(from_input[0, :, : lstm.hidden_size])
        states = []
        for gates in from_input.unbind():
            into, forget, new, out = torch.addmm(gates, hidden, w_hidden.T).chunk(4, -1)
            cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
            hidden = out.sigmoid() * cell.tanh()
            states.append(hidden)
        inputs = torch.stack(states)
    return inputs.transpose(0, 1)
