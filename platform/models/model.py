"""Base class of all models: a section of the experiment file that builds its network. Also the section of users' own
models."""

from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator
from torch import nn

from hedgerow.platform.common.section import Section

Width = Annotated[int, Field(ge=1)]
Depth = Annotated[int, Field(ge=1, le=1000)]


class Model(Section):
    """Built-in model. Its fields are its sizes."""

    takes: ClassVar[tuple[str, ...]] = ("images", "flat features")
    """Kinds of samples on which the model can be trained."""

    name: str = ""
    """Name of the model in the experiment file, set by the registry."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Builds the network, with parameters drawn from torch's generator. shape: of one sample. Raises UserError."""
        raise NotImplementedError


class StagedModel(Model):
    """Built-in model of stages of blocks, for images; by default with the stages of ResNet-18."""

    takes: ClassVar[tuple[str, ...]] = ("images",)

    channels: list[Width] = Field([64, 128, 256, 512], min_length=1, description="channels of each stage")
    blocks: list[Depth] = Field([2, 2, 2, 2], min_length=1, description="number of blocks of each stage")

    @model_validator(mode="after")
    def _equally_many(self) -> Self:
        if len(self.channels) != len(self.blocks):
            raise ValueError("`channels` and `blocks` must have the same number of entries, one for each stage")
        return self


class CustomModel(Section):
    """Your own torch.nn.Module: `name` is its dotted path, `args` goes to its constructor."""

    name: str
    args: dict[str, Any] = Field({}, description="keyword arguments of its constructor")
