"""The model section of an experiment file."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from hedgerow.platform.common.section import Section

Width = Annotated[int, Field(ge=1)]
Depth = Annotated[int, Field(ge=1, le=1000)]


class BuiltIn(Section):
    """A built-in model."""

    takes: ClassVar[tuple[str, ...]] = ("images", "flat features")
    """The kinds of samples that it can be trained on."""


class LogReg(BuiltIn):
    """Multinomial logistic regression (thesis, appendix A.1.1)."""

    name: Literal["logreg"] = "logreg"


class MLP(BuiltIn):
    """Fully connected ReLU network on the flattened sample.

    The FedDyn experiments use hidden [200, 200] for MNIST (FedAvg's "2NN", 199210 parameters) and [100, 100] for the
    EMNIST letters (89610).
    """

    name: Literal["mlp"] = "mlp"
    hidden: list[Width] = Field([200], description="units of the hidden layers")


class CNN(BuiltIn):
    """FedDyn's CIFAR network: conv 5x5, max-pool, conv 5x5, max-pool, two fully connected layers; no normalisation.

    Other depths with other lists: MOML's networks for images of 84x84 have three convolutions and `fc: [400, 100]`.

    The thesis prints 394 units for the first of them in chapter 2 (815892 parameters on CIFAR-10) and 384 in appendix
    A.1.2 (797962): `fc` decides. The padding is not printed.
    """

    takes: ClassVar[tuple[str, ...]] = ("images",)
    name: Literal["cnn"] = "cnn"
    channels: list[Width] = Field([64, 64], min_length=1, description="channels of the convolutions")
    kernel: int = Field(5, ge=1, description="kernel size")
    padding: int = Field(0, ge=0, description="zero padding of the convolutions")
    fc: list[Width] = Field([394, 192], description="units of the fully connected layers")


class SmallCNN(BuiltIn):
    """`cnn` for images of 8x8, such as the digits: conv 3x3x16, max-pool, conv 3x3x32, max-pool, linear (6090)."""

    takes: ClassVar[tuple[str, ...]] = ("images",)
    name: Literal["small_cnn"] = "small_cnn"


class Conv4(BuiltIn):
    """FedSep's network: three convolutions 3x3 with max-pools, one 2x2, linear.

    24234 parameters with 32 channels on MNIST, 97866 with 64 on CIFAR-10; pools, padding and head are not printed.
    """

    takes: ClassVar[tuple[str, ...]] = ("images",)
    name: Literal["conv4"] = "conv4"
    channels: int = Field(32, ge=1, description="channels of each convolution")


class ResNet18(BuiltIn):
    """torchvision's ResNet-18 with GroupNorm in place of BatchNorm, about 11.2 million parameters.

    As Hsieh et al., "The Non-IID Data Quagmire of Decentralized Machine Learning", 2020.
    """

    takes: ClassVar[tuple[str, ...]] = ("images",)
    name: Literal["resnet18_gn"] = "resnet18_gn"
    groups: int = Field(2, ge=1, description="groups of each GroupNorm; must divide 64")
    small_images: bool = Field(True, description="3x3 stem with stride 1 and no max-pool, as usual for 32x32 images")


class StaticResNet(BuiltIn):
    """HeteroFL's and FedSep's ResNet: pre-activation blocks with static batch norm, whose sub-models are exact.

    ResNet-18 as it is, 11,164,362 parameters for 10 classes; smaller with other lists.
    """

    takes: ClassVar[tuple[str, ...]] = ("images",)
    name: Literal["resnet_static"] = "resnet_static"
    channels: list[Width] = Field([64, 128, 256, 512], min_length=1, description="channels of each stage")
    blocks: list[Depth] = Field([2, 2, 2, 2], min_length=1, description="blocks of each stage")

    @model_validator(mode="after")
    def _as_many(self) -> Self:
        if len(self.channels) != len(self.blocks):
            raise ValueError("`channels` and `blocks` must have an entry for each stage, both as many")
        return self


class ExitResNet(BuiltIn):
    """FedHeN's pre-activation ResNet with GroupNorm, whose first stages have an exit of their own, behind mix pooling.

    As it is, 11,171,146 parameters for 10 classes without that exit, of which the simple network has 674,880 and 1,291
    of its exit; smaller with other lists. The groups and the size of the pooled image are not printed.
    """

    takes: ClassVar[tuple[str, ...]] = ("images",)
    name: Literal["resnet_exit"] = "resnet_exit"
    channels: list[Width] = Field([64, 128, 256, 512], min_length=2, description="channels of each stage")
    blocks: list[Depth] = Field([2, 2, 2, 2], min_length=2, description="blocks of each stage")
    exit_after: int = Field(2, ge=1, description="stages of the simple network")
    groups: int = Field(2, ge=1, description="groups of each GroupNorm; must divide all channels")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.channels) != len(self.blocks):
            raise ValueError("`channels` and `blocks` must have an entry for each stage, both as many")
        if self.exit_after >= len(self.channels):
            raise ValueError(f"`exit_after` must leave a stage of the {len(self.channels)} behind the exit; lower it")
        if any(width % self.groups for width in self.channels):
            raise ValueError(f"`groups`: {self.groups} does not divide all of `channels`; choose 1 or another divisor")
        return self


class PreActResNet(BuiltIn):
    """Pre-activation ResNet with GroupNorm (thesis, 7.2): ResNet-18 as it is, 11.2 million parameters for 100 classes;
    ResNet-34, 21.3 million, with `blocks: [3, 4, 6, 3]`.
    """

    takes: ClassVar[tuple[str, ...]] = ("images",)
    name: Literal["preact_resnet"] = "preact_resnet"
    channels: list[Width] = Field([64, 128, 256, 512], min_length=1, description="channels of each stage")
    blocks: list[Depth] = Field([2, 2, 2, 2], min_length=1, description="blocks of each stage")
    groups: int = Field(32, ge=1, description="groups of each GroupNorm; must divide all channels")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.channels) != len(self.blocks):
            raise ValueError("`channels` and `blocks` must have an entry for each stage, both as many")
        if any(width % self.groups for width in self.channels):
            raise ValueError(f"`groups`: {self.groups} does not divide all of `channels`; choose 1 or another divisor")
        return self


class CharLSTM(BuiltIn):
    """LEAF's next-character model: embedding, stacked LSTM, linear on the last position.

    133520 parameters with 80 characters: torch's LSTM has two bias vectors per layer.
    """

    takes: ClassVar[tuple[str, ...]] = ("token sequences",)
    name: Literal["char_lstm"] = "char_lstm"
    vocabulary: int | None = Field(None, ge=2, description="number of distinct tokens; null: of the data set's classes")
    embedding: int = Field(8, ge=1, description="dimension of a token's embedding")
    hidden: int = Field(100, ge=1, description="units of each LSTM layer")
    layers: Depth = Field(2, description="LSTM layers")


class QuadraticXY(BuiltIn):
    """The two variables of the quadratic bilevel problem, for `data: {name: quadratic}` alone."""

    takes: ClassVar[tuple[str, ...]] = ("flat features",)
    name: Literal["quadratic"] = "quadratic"
    upper: int = Field(4, ge=1, description="dimension of x, as in the data")


class ResNet(BuiltIn):
    """A ResNet of basic blocks with static batch norm or GroupNorm: DiSK's ResNets, and its WRNs by other lists.

    As it is, ResNet-10-xxs: 13,020 parameters for 100 classes. ResNet-34, 21,328,292: channels [64, 128, 256, 512] and
    blocks [3, 4, 6, 3]. ImageNet's ResNet-18, 11,689,512 for 1000 classes, with `large_images: true`; ResNet-50,
    25,557,032, also with `bottleneck: true` and ResNet-34's lists.
    """

    takes: ClassVar[tuple[str, ...]] = ("images",)
    name: Literal["resnet"] = "resnet"
    channels: list[Width] = Field([8, 8, 16, 16], min_length=1, description="channels of each stage")
    blocks: list[Depth] = Field([1, 1, 1, 1], min_length=1, description="blocks of each stage")
    stem: int | None = Field(None, ge=1, description="channels of the stem; null: those of the first stage")
    bottleneck: bool = Field(False, description="blocks of three convolutions with four times the channels at the end")
    large_images: bool = Field(False, description="a 7x7 stem with stride 2 and a max-pool, as for images of 224x224")
    groups: int | None = Field(
        None,
        ge=1,
        description="GroupNorm with so many groups, which clients can train in batches; null: static batch norm",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.channels) != len(self.blocks):
            raise ValueError("`channels` and `blocks` must have an entry for each stage, both as many")
        if self.groups and any(width % self.groups for width in [*self.channels, self.stem or self.groups]):
            raise ValueError(f"`groups`: {self.groups} does not divide all of `channels` and `stem`; choose 1")
        return self


class ShuffleNetV2(BuiltIn):
    """torchvision's ShuffleNetV2 of size 1 with static batch norm, a 1x1 stem and no pool behind it (1.36 million)."""

    takes: ClassVar[tuple[str, ...]] = ("images",)
    name: Literal["shufflenet_v2"] = "shufflenet_v2"


class MobileNetV2(BuiltIn):
    """torchvision's MobileNetV2 with static batch norm, for small images (2.35 million parameters)."""

    takes: ClassVar[tuple[str, ...]] = ("images",)
    name: Literal["mobilenet_v2"] = "mobilenet_v2"


class VisionTransformer(BuiltIn):
    """torchvision's vision transformer: ViT-Tiny/16 as it is, 5,717,416 parameters for 224x224 and 1000 classes;
    ViT-Large/16, 304,326,632, with `layers: 24, heads: 16, width: 1024`.
    """

    takes: ClassVar[tuple[str, ...]] = ("images",)
    name: Literal["vit"] = "vit"
    patch: int = Field(16, ge=1, description="side of a patch; must divide that of the images, which are square")
    layers: Depth = Field(12, description="encoder layers")
    heads: int = Field(3, ge=1, description="attention heads; must divide `width`")
    width: int = Field(192, ge=1, description="of a token; the hidden units of a layer are four times as many")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"`heads`: {self.heads} does not divide `width: {self.width}`; choose another")
        return self


class IntervalsModel(BuiltIn):
    """DiSK's toy on a line: intervals with soft ends, for `data: {name: intervals}`."""

    takes: ClassVar[tuple[str, ...]] = ("flat features",)
    name: Literal["intervals"] = "intervals"
    number: int = Field(1, ge=1, description="of intervals; one is drawn, several begin spread evenly")
    steepness: float = Field(10.0, gt=0, description="kappa, of the ends; not printed")
    floor: float = Field(1e-5, gt=0, lt=0.5, description="least probability of a class; not printed")


class StaticMLP(BuiltIn):
    """Fully connected network, static batch norm before each ReLU, a bias in the last layer alone: DiSK's toy in the
    plane.
    """

    name: Literal["mlp_static"] = "mlp_static"
    hidden: list[Width] = Field([2], min_length=1, description="units of the hidden layers")
    levels: dict[str, float] = Field(
        {}, description="test accuracies of known minima, by name: models side by side are counted by them"
    )


class CustomModel(Section):
    """Your own torch.nn.Module: `name` is its dotted path, `args` goes to its constructor."""

    name: str
    args: dict[str, Any] = Field({}, description="keyword arguments of its constructor")


MODELS: dict[str, type[BuiltIn]] = {
    "logreg": LogReg,
    "mlp": MLP,
    "cnn": CNN,
    "small_cnn": SmallCNN,
    "conv4": Conv4,
    "resnet18_gn": ResNet18,
    "resnet_static": StaticResNet,
    "resnet_exit": ExitResNet,
    "preact_resnet": PreActResNet,
    "resnet": ResNet,
    "shufflenet_v2": ShuffleNetV2,
    "mobilenet_v2": MobileNetV2,
    "vit": VisionTransformer,
    "intervals": IntervalsModel,
    "mlp_static": StaticMLP,
    "char_lstm": CharLSTM,
    "quadratic": QuadraticXY,
}


def _tag(values: Any) -> Any:
    name = values.get("name") if isinstance(values, dict) else getattr(values, "name", None)
    return "own" if isinstance(name, str) and "." in name else name


ModelConfig = Annotated[
    Annotated[LogReg, Tag("logreg")]
    | Annotated[MLP, Tag("mlp")]
    | Annotated[CNN, Tag("cnn")]
    | Annotated[SmallCNN, Tag("small_cnn")]
    | Annotated[Conv4, Tag("conv4")]
    | Annotated[ResNet18, Tag("resnet18_gn")]
    | Annotated[StaticResNet, Tag("resnet_static")]
    | Annotated[ExitResNet, Tag("resnet_exit")]
    | Annotated[PreActResNet, Tag("preact_resnet")]
    | Annotated[ResNet, Tag("resnet")]
    | Annotated[ShuffleNetV2, Tag("shufflenet_v2")]
    | Annotated[MobileNetV2, Tag("mobilenet_v2")]
    | Annotated[VisionTransformer, Tag("vit")]
    | Annotated[IntervalsModel, Tag("intervals")]
    | Annotated[StaticMLP, Tag("mlp_static")]
    | Annotated[CharLSTM, Tag("char_lstm")]
    | Annotated[QuadraticXY, Tag("quadratic")]
    | Annotated[CustomModel, Tag("own")],
    Discriminator(_tag),
]
