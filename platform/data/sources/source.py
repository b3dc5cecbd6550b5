"""The data section of an experiment file: one class per source, each with its own options and its loader."""

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.section import Section
from hedgerow.platform.data.dataset import Dataset, image_dataset, stratified_split

Seed = Annotated[
    int, Field(ge=0, lt=2**63, description="draws the data; the experiment's own seed does not change them")
]


class Source(Section):
    """Where a data set comes from."""

    name: Any

    def files(self, root: Path) -> list[Path]:
        """The files whose change makes a cached conversion stale; empty for sources that read none.

        Raises UserError when they are missing.
        """
        return []

    @property
    def drawn(self) -> int:
        """Numbers that are drawn for it, in float64; 0 for sources that read files."""
        return 0

    def load(self, root: Path) -> Dataset:
        """Read and convert. root: the folder of the data sets."""
        raise NotImplementedError


class Digits(Source):
    """scikit-learn's 1797 handwritten digits, 1x8x8 (UCI Optical Recognition of Handwritten Digits, test part)."""

    name: Literal["digits"] = "digits"
    test_fraction: float = Field(0.2, gt=0, lt=1, description="share of each class that is kept for testing")

    def load(self, root: Path) -> Dataset:
        from sklearn.datasets import load_digits

        digits = load_digits()
        x, y = digits.images.astype(np.uint8)[:, None], digits.target.astype(np.int64)
        train, test = stratified_split(y, self.test_fraction)
        zero, full = np.zeros((1, 1, 1), np.float32), np.full((1, 1, 1), 16, np.float32)
        return Dataset("digits", x[train], y[train], x[test], y[test], 10, zero, full, tuple("0123456789"))


class TorchvisionSource(Source):
    """A data set in torchvision's own layout, under the data root or under a folder of its name there."""

    download: bool = Field(False, description="fetch it into the data root when it is absent")

    def files(self, root: Path) -> list[Path]:
        from hedgerow.platform.data.sources import vision

        return vision.files(self.name, root, self.download)

    def load(self, root: Path) -> Dataset:
        # torchvision takes seconds to import; a process that reads the cache never does.
        from hedgerow.platform.data.sources import vision

        return vision.load(self.name, root, self.download)


class MNIST(TorchvisionSource):
    """MNIST: 60000 + 10000 digits, 1x28x28."""

    name: Literal["mnist"] = "mnist"


class FashionMNIST(TorchvisionSource):
    """Fashion-MNIST: 60000 + 10000 articles of clothing, 1x28x28."""

    name: Literal["fashion_mnist"] = "fashion_mnist"


class CIFAR10(TorchvisionSource):
    """CIFAR-10: 50000 + 10000 photographs, 3x32x32."""

    name: Literal["cifar10"] = "cifar10"


class CIFAR100(TorchvisionSource):
    """CIFAR-100: 50000 + 10000 photographs in 100 classes, 3x32x32."""

    name: Literal["cifar100"] = "cifar100"


class EMNISTLetters(TorchvisionSource):
    """EMNIST letters, 1x28x28: the first 10 are FedDyn's EMNIST-L, 48000 + 8000 samples."""

    name: Literal["emnist_letters"] = "emnist_letters"
    classes: int = Field(10, ge=2, le=26, description="how many letters, from A")

    def load(self, root: Path) -> Dataset:
        everything = super().load(root)
        train, test = everything.y_train < self.classes, everything.y_test < self.classes
        return image_dataset(
            "emnist_letters",
            (everything.x_train[train], everything.y_train[train]),
            (everything.x_test[test], everything.y_test[test]),
            everything.class_names[: self.classes],
            (0.1307,),
            (0.3081,),
        )


class ImageFolder(Source):
    """Your own images: CLASS/*.png, or train/CLASS/* and test/CLASS/* (or val/CLASS/*), in a folder or in a zip of one.

    Where test/ is not there, or its images have no class, val/ is tested: of ImageNet, sorted into val/CLASS/*, and of
    Tiny-ImageNet, as it is unpacked.
    """

    name: Literal["image_folder"] = "image_folder"
    path: str = Field(min_length=1, description="the folder or .zip, absolute or under the data root")
    size: int | None = Field(
        None,
        ge=1,
        description="resize an image's shorter side to it and crop the middle; null: all images have one size already",
    )
    test_fraction: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="share of each class that is kept for testing, where there is neither test/ nor val/",
    )

    def files(self, root: Path) -> list[Path]:
        from hedgerow.platform.data.sources import image_folder as folder

        return folder.files(root / self.path)

    def load(self, root: Path) -> Dataset:
        from hedgerow.platform.data.sources import image_folder as folder

        return folder.load(root / self.path, self.size, self.test_fraction)


class Omniglot(Source):
    """Omniglot's characters, 1x28x28, 20 drawings each, from the zips of its authors (as torchvision keeps them)."""

    name: Literal["omniglot"] = "omniglot"
    path: str = Field("omniglot-py", min_length=1, description="folder of images_background*.zip, under the data root")
    size: int = Field(28, ge=1, description="resize to size x size")
    test_fraction: float = Field(0.5, gt=0, lt=1, description="share of each character that is kept for testing")

    def files(self, root: Path) -> list[Path]:
        from hedgerow.platform.data.sources import image_folder as folder
        from hedgerow.platform.data.sources import omniglot

        return [file for archive in omniglot.archives(root / self.path) for file in folder.files(archive)]

    def load(self, root: Path) -> Dataset:
        from hedgerow.platform.data.sources import omniglot

        return omniglot.load(root / self.path, self.size, self.test_fraction)


class Synthetic(Source):
    """FedDyn's synthetic family (thesis, appendix A.1.1): each client has its own linear model and its own features.

    gamma1 > 0: the clients' optimal models differ (type 1). gamma2 > 0: their feature means differ (type 2).
    gamma3 > 0: their sample counts differ (type 3). All 0: homogeneous. Partition it with `kind: natural`.
    """

    name: Literal["synthetic"] = "synthetic"
    clients: int = Field(20, ge=1, description="number of clients")
    samples: int = Field(200, ge=1, description="training samples per client, on average")
    test_samples: int = Field(50, ge=1, description="test samples per client")
    features: int = Field(30, ge=1, description="dimension of a sample")
    classes: int = Field(5, ge=2, description="number of classes")
    gamma1: float = Field(0.0, ge=0, description="variance of the means of the clients' models")
    gamma2: float = Field(0.0, ge=0, description="variance of the means of the clients' features")
    gamma3: float = Field(0.0, ge=0, description="variance of the logarithm of the clients' sample counts")
    seed: Seed = 0

    @property
    def drawn(self) -> int:
        return (self.clients * (self.samples + self.test_samples) + self.classes) * self.features

    def load(self, root: Path) -> Dataset:
        from hedgerow.platform.data.sources import synthetic_data as synthetic

        return synthetic.generate(self)


class QuadraticData(Source):
    """Random quadratic bilevel problems, one per client: g = 1/2 y'A y - y'(B x + c) and
    f = 1/2 y'D y - e'y + 1/2 x'P x - r'x. A sample is one problem's coefficients.

    Eigenvalues of A lie in [1, 4], of D in [0.5, 1.5], of P in [0.5, 1]; entries of B ~ N(0, 1/lower), of c, e, r ~
    N(0, 1).
    """

    name: Literal["quadratic"] = "quadratic"
    clients: int = Field(8, ge=1, description="number of clients")
    upper: int = Field(4, ge=1, description="dimension of x")
    lower: int = Field(6, ge=1, description="dimension of y")
    heterogeneity: float = Field(
        1.0, ge=0, le=1, description="share of a problem that is the client's own; the rest is common to all"
    )
    samples: int = Field(2, ge=2, description="samples of a client, dealt to training and validation")
    noise: float = Field(0.0, ge=0, description="standard deviation of the samples' c, e and r")
    matrix_noise: float = Field(0.0, ge=0, description="and of their A, B, D and P, times the root of the dimension")
    seed: Seed = 0

    @property
    def drawn(self) -> int:
        p, d = self.upper, self.lower
        return self.clients * self.samples * (2 * d * d + d * p + p * p)

    def load(self, root: Path) -> Dataset:
        from hedgerow.platform.data.sources import quadratic_data as quadratic

        return quadratic.generate(self)


class IntervalsData(Source):
    """DiSK's toy on a line: points of [0, 9], blue in [2, 3] and [5, 7], red elsewhere, as many of both."""

    name: Literal["intervals"] = "intervals"
    samples: int = Field(1000, ge=2, description="training samples")
    test_samples: int = Field(100, ge=2, description="test samples")
    seed: Seed = 0

    @property
    def drawn(self) -> int:
        return self.samples + self.test_samples

    def load(self, root: Path) -> Dataset:
        from hedgerow.platform.data.sources import toy_data as toys

        return toys.intervals(self)


class Gaussians(Source):
    """DiSK's toy in the plane: six Gaussians, two of each of three classes."""

    name: Literal["gaussians"] = "gaussians"
    samples: int = Field(1000, ge=6, description="training samples")
    test_samples: int = Field(1000, ge=6, description="test samples")
    variance: float = Field(0.05, gt=0, description="of each coordinate")
    seed: Seed = 0

    @property
    def drawn(self) -> int:
        return 2 * (self.samples + self.test_samples)

    def load(self, root: Path) -> Dataset:
        from hedgerow.platform.data.sources import toy_data as toys

        return toys.gaussians(self)


class _Characters(Source):
    """Text as samples of characters with the one that follows. `kind: natural` gives each client one role."""

    clients: int = Field(100, ge=1, description="roles (or blocks) to keep: drawn from those with enough text")
    samples: int = Field(2000, ge=1, description="training samples of a role, at most")
    test_samples: int = Field(400, ge=1, description="test samples of a role, at most")
    seed: int = Field(0, ge=0, description="draws the roles; the experiment's own seed does not change them")


class LeafShakespeare(_Characters):
    """Shakespeare as LEAF prepares it (Caldas et al. 2018): 80 characters, the next one of 80 is to be told.

    The FedDyn experiments keep 100 roles with up to 2000 samples each.
    """

    name: Literal["shakespeare"] = "shakespeare"
    path: str = Field("shakespeare", min_length=1, description="LEAF's folder of train/ and test/, under the data root")

    def files(self, root: Path) -> list[Path]:
        from hedgerow.platform.data.sources import text

        return text.leaf_files(root / self.path)

    def load(self, root: Path) -> Dataset:
        from hedgerow.platform.data.sources import text

        return text.load_leaf(root / self.path, self)


class TextFile(_Characters):
    """Any text file in UTF-8: a play cut by its speakers (paragraphs that begin with "NAME:"), or a text in blocks."""

    name: Literal["text"] = "text"
    path: str = Field(min_length=1, description="the file, absolute or under the data root")
    by: Literal["speaker", "block"] = Field(
        "speaker", description="who has what: speakers their words, or equal blocks"
    )
    length: int = Field(80, ge=1, description="characters of a sample")
    stride: int = Field(1, ge=1, description="characters from one sample to the next")

    def files(self, root: Path) -> list[Path]:
        file = root / self.path
        if not file.is_file():
            raise UserError(f"task.data.path: there is no file {file.absolute()}; give the text, or --data-root")
        return [file]

    def load(self, root: Path) -> Dataset:
        from hedgerow.platform.data.sources import text

        return text.load_text(root / self.path, self)


DataConfig = Annotated[
    Digits
    | MNIST
    | EMNISTLetters
    | FashionMNIST
    | CIFAR10
    | CIFAR100
    | ImageFolder
    | Omniglot
    | Synthetic
    | QuadraticData
    | IntervalsData
    | Gaussians
    | LeafShakespeare
    | TextFile,
    Field(discriminator="name"),
]
