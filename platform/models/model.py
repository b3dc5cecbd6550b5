"""Base class of all models: a section of the experiment file that builds its network. Also the section of users' own
models."""

from typing import Annotated, Any, ClassVar

from pydantic import Field
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


class CustomModel(Section):
    """Your own torch.nn.Module: `name` is its dotted path, `args` goes to its constructor."""

    name: str
    args: dict[str, Any] = Field({}, description="keyword arguments of its constructor")
