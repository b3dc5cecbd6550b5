"""The base of all models: a section of the experiment file that builds its network; and the section of your own."""

from typing import Annotated, Any, ClassVar

from pydantic import Field
from torch import nn

from hedgerow.platform.common.section import Section

Width = Annotated[int, Field(ge=1)]
Depth = Annotated[int, Field(ge=1, le=1000)]


class Model(Section):
    """A built-in model. Its fields are its sizes."""

    takes: ClassVar[tuple[str, ...]] = ("images", "flat features")
    """The kinds of samples that it can be trained on."""

    name: str = ""
    """As in the experiment file, which stamps it on."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The network, its parameters drawn from torch's generator. shape: of one sample. Raises UserError."""
        raise NotImplementedError


class CustomModel(Section):
    """Your own torch.nn.Module: `name` is its dotted path, `args` goes to its constructor."""

    name: str
    args: dict[str, Any] = Field({}, description="keyword arguments of its constructor")
