"""Base class of all models: a section of the experiment file that builds its network. Also the section of users' own
models."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field
from torch import nn

from hedgerow.algorithms.core.hyperparameters import Rule
from hedgerow.algorithms.core.layer_context import BufferPolicy
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.section import Section

Width = Annotated[int, Field(ge=1)]
Depth = Annotated[int, Field(ge=1, le=1000)]


def absolute(path: str | None) -> str | None:
    """Absolute path of a file or folder: a run may be resumed from another folder."""
    return None if path is None else str(Path(path).absolute())


StateDictFile = Annotated[
    str | None,
    Field(
        min_length=1,
        description="file with the initial parameters, a state dict in the format of safetensors or torch.save; null: "
        "initial parameters from the seed",
    ),
    AfterValidator(absolute),
]
FrozenNames = Annotated[
    list[str],
    Field(description="patterns of names of parameters, such as features.*, that are neither trained nor transmitted"),
]


class Model(Section):
    """Built-in model. Its other fields are its sizes."""

    takes: ClassVar[tuple[str, ...]] = ("images", "flat features")
    """Kinds of samples on which the model can be trained."""

    is_foreign: ClassVar[bool] = False
    """Whether other people wrote the network. It is tried before the first round: its training mode, and vmap."""

    buffers: ClassVar[BufferPolicy] = "average"
    """Treatment of buffers that training changes, see `CustomModel.buffers`."""

    name: str = ""
    """Name of the model in the experiment file, set by the registry."""

    init: StateDictFile = None
    freeze: FrozenNames = Field([])

    def for_tokens(self, classes: int, count: Callable[[], int]) -> Self:
        """Section for sequences of tokens. count: returns the number of distinct tokens. Raises UserError."""
        return self

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Builds the network, with parameters drawn from torch's generator. shape: of one sample. Raises UserError."""
        raise NotImplementedError


def check_vocabulary(vocabulary: int | None, count: int) -> None:
    """Raises UserError if a model has fewer embeddings than the data have tokens."""
    if vocabulary is not None and vocabulary < count:
        raise UserError(
            f"task.model.vocabulary: the data have {count} tokens, not {vocabulary}; raise it, or remove it"
        )


class StagedModel(Model):
    """Built-in model of stages of blocks, for images; by default with the stages of ResNet-18."""

    takes: ClassVar[tuple[str, ...]] = ("images",)

    channels: list[Width] = Field([64, 128, 256, 512], min_length=1, description="channels of each stage")
    blocks: list[Depth] = Field([2, 2, 2, 2], min_length=1, description="number of blocks of each stage")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda model: len(model.channels) != len(model.blocks),
            "`channels` and `blocks` must have the same number of entries, one for each stage",
        ),
    )


class CustomModel(Section):
    """Your own model: `name` is the dotted path of a torch.nn.Module or of a function that returns one."""

    is_foreign: ClassVar[bool] = True
    dotted_key: ClassVar[str] = "name"

    name: str
    args: dict[str, Any] = Field({}, description="keyword arguments of the class or function")
    buffers: BufferPolicy = Field(
        "average",
        description="running statistics, such as those of batch norm; average: sent with the model, and averaged by "
        "the number of training samples; local: each client keeps its own, which is never sent (FedBN); ignore: none "
        "are kept, and each mini-batch is normalised by its own statistics, also in evaluation",
    )
    init: StateDictFile = None
    freeze: FrozenNames = Field([])
