"""AutoAugment (Cubuk et al., "AutoAugment: Learning Augmentation Strategies from Data", 2019), policy for CIFAR-10.

Each sample draws one of the 25 sub-policies. Every operation is computed for all samples, and each sample keeps one
result: no control flow depends on a value.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.core.keyed_random import randint, uniform

GEOMETRIC = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
COLOURS = (
    "Invert", "AutoContrast", "Equalize", "Solarize", "Posterize", "Contrast", "Color", "Brightness", "Sharpness",
)  # fmt: skip
OPERATIONS = (*GEOMETRIC, *COLOURS)
SIGNED = {*GEOMETRIC, "Contrast", "Color", "Brightness", "Sharpness"}

POLICY: tuple[tuple[tuple[str, float, int], tuple[str, float, int]], ...] = (
    (("Invert", 0.1, 0), ("Contrast", 0.2, 6)),
    (("Rotate", 0.7, 2), ("TranslateX", 0.3, 9)),
    (("Sharpness", 0.8, 1), ("Sharpness", 0.9, 3)),
    (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.5, 0), ("Equalize", 0.9, 0)),
    (("ShearY", 0.2, 7), ("Posterize", 0.3, 7)),
    (("Color", 0.4, 3), ("Brightness", 0.6, 7)),
    (("Sharpness", 0.3, 9), ("Brightness", 0.7, 9)),
    (("Equalize", 0.6, 0), ("Equalize", 0.5, 0)),
    (("Contrast", 0.6, 7), ("Sharpness", 0.6, 5)),
    (("Color", 0.7, 7), ("TranslateX", 0.5, 8)),
    (("Equalize", 0.3, 0), ("AutoContrast", 0.4, 0)),
    (("TranslateY", 0.4, 3), ("Sharpness", 0.2, 6)),
    (("Brightness", 0.9, 6), ("Color", 0.2, 8)),
    (("Solarize", 0.5, 2), ("Invert", 0.0, 0)),
    (("Equalize", 0.2, 0), ("AutoContrast", 0.6, 0)),
    (("Equalize", 0.2, 0), ("Equalize", 0.6, 0)),
    (("Color", 0.9, 9), ("Equalize", 0.6, 0)),
    (("AutoContrast", 0.8, 0), ("Solarize", 0.2, 8)),
    (("Brightness", 0.1, 3), ("Color", 0.7, 0)),
    (("Solarize", 0.4, 5), ("AutoContrast", 0.9, 0)),
    (("TranslateY", 0.9, 9), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.9, 0), ("Solarize", 0.8, 3)),
    (("Equalize", 0.8, 0), ("Invert", 0.1, 0)),
    (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, 0)),
)
"""Two triples (operation, probability, level from 0 to 9) per sub-policy."""


def magnitude(operation: str, level: int, height: int, width: int) -> float:
    """Magnitude of an operation at a level, without a sign if the sign is random."""
    match operation:
        case "ShearX" | "ShearY":
            return 0.3 * level / 9
        case "TranslateX":
            return float(int(150 / 331 * width * level / 9))
        case "TranslateY":
            return float(int(150 / 331 * height * level / 9))
        case "Rotate":
            return 30 * level / 9
        case "Solarize":
            return 255 * (1 - level / 9)
        case "Posterize":
            return 8.0 - round(level / 2.25)
        case "Contrast" | "Color" | "Brightness" | "Sharpness":
            return 0.9 * level / 9
    return 0.0


def auto_augment(x: Tensor, key: Tensor, rows: Tensor) -> Tensor:
    """Applies a random sub-policy to each sample of x (samples, C, H, W), whole numbers from 0 to 255."""
    policy = randint(len(POLICY), key, rows, 10)
    for place in range(2):
        kinds = torch.tensor([OPERATIONS.index(pair[place][0]) for pair in POLICY], device=x.device)[policy]
        chances = torch.tensor([pair[place][1] for pair in POLICY], device=x.device)[policy]
        sizes = [magnitude(*pair[place][::2], *x.shape[-2:]) for pair in POLICY]
        signed = torch.tensor([pair[place][0] in SIGNED for pair in POLICY], device=x.device)[policy]
        minus = signed & (randint(2, key, rows, 11 + 2 * place) == 1)
        size = torch.tensor(sizes, device=x.device)[policy]
        mask = uniform(key, rows, 12 + 2 * place) < chances
        x = apply(x, torch.where(mask, kinds, -1), torch.where(minus, -size, size))
    return x


def apply(x: Tensor, kinds: Tensor, sizes: Tensor) -> Tensor:
    """Applies to each sample the operation with its index in OPERATIONS, or none for index -1, at its magnitude."""
    result = warped(x, kinds, sizes)
    for kind, colour in enumerate(COLOURS, start=len(GEOMETRIC)):
        changed = _coloured(colour, x, sizes[:, None, None, None])
        result = torch.where((kinds == kind)[:, None, None, None], changed, result)
    return result


def warped(x: Tensor, kinds: Tensor, sizes: Tensor) -> Tensor:
    """Shears around the upper left corner, translates by whole pixels, or rotates around the centre, with the nearest
    pixel and black outside. Samples of other kinds are unchanged."""
    n, channels, height, width = x.shape
    zero = torch.zeros_like(sizes)

    def of(kind: str, value: Tensor, otherwise: Tensor = zero) -> Tensor:
        return torch.where(kinds == OPERATIONS.index(kind), value, otherwise)

    angle = of("Rotate", sizes * (math.pi / 180))
    cos, sin = angle.cos(), angle.sin()
    # Source of a pixel, relative to the centre: the inverse operation. A positive angle rotates anticlockwise.
    a, b = cos, of("ShearX", sizes, -sin)
    c, d = of("ShearY", sizes, sin), cos
    half_x, half_y = (width - 1) / 2, (height - 1) / 2
    # A shear keeps the corner of the first pixel in place.
    shift_x = of("TranslateX", -sizes, of("ShearX", sizes * (half_y + 0.5)))
    shift_y = of("TranslateY", -sizes, of("ShearY", sizes * (half_x + 0.5)))
    x_, y_ = torch.arange(width, device=x.device) - half_x, torch.arange(height, device=x.device) - half_y
    across = a[:, None, None] * x_ + b[:, None, None] * y_[:, None] + shift_x[:, None, None] + half_x
    down = c[:, None, None] * x_ + d[:, None, None] * y_[:, None] + shift_y[:, None, None] + half_y
    across, down = across.round().long(), down.round().long()
    inside = (across >= 0) & (across < width) & (down >= 0) & (down < height)
    source = down.clamp(0, height - 1) * width + across.clamp(0, width - 1)
    pixels = x.flatten(2).gather(2, source.view(n, 1, -1).expand(n, channels, -1)).view_as(x)
    return pixels * inside[:, None]


def _coloured(operation: str, x: Tensor, size: Tensor) -> Tensor:
    match operation:
        case "Invert":
            return 255 - x
        case "AutoContrast":
            low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
            scale = 255 / torch.where(high > low, high - low, 1.0)
            return torch.where(high > low, ((x - low) * scale).clamp(0, 255).floor(), x)
        case "Equalize":
            return equalised(x)
        case "Solarize":
            return torch.where(x >= size, 255 - x, x)
        case "Posterize":
            step = torch.exp2(8 - size)
            return (x / step).floor() * step
        case "Contrast":
            return _blended(x, _grey(x).floor().mean((1, 2, 3), keepdim=True), size)
        case "Color":
            return _blended(x, _grey(x).floor(), size)
        case "Brightness":
            return _blended(x, torch.zeros_like(x), size)
    return _blended(x, _blurred(x), size)


def equalised(x: Tensor) -> Tensor:
    """Histogram equalisation of each channel by a lookup table of its 256 values."""
    n, channels = x.shape[:2]
    values = x.flatten(2).long()
    counts = torch.zeros(n, channels, 256, device=x.device, dtype=x.dtype)
    counts = counts.scatter_add(2, values, torch.ones_like(values, dtype=x.dtype))
    # The largest value that occurs is not counted.
    places = torch.arange(256, device=x.device)
    last = counts.gather(2, torch.where(counts > 0, places, 0).amax(-1, keepdim=True))
    step = ((counts.sum(-1, keepdim=True) - last) / 255).floor()
    whole = step.clamp(min=1)
    table = ((counts.cumsum(-1) + (whole / 2).floor()) / whole).floor()
    table = torch.cat([torch.zeros_like(table[..., :1]), table[..., :-1]], -1).clamp(0, 255)
    return torch.where(step[..., None] > 0, table.gather(2, values).view_as(x), x)


def _blended(x: Tensor, other: Tensor, size: Tensor) -> Tensor:
    """Moves x away from `other` (size > 0) or towards it (size < 0), rounded down to whole numbers."""
    return ((1 + size) * x - size * other).clamp(0, 255).floor()


def _grey(x: Tensor) -> Tensor:
    """Greyscale images, (samples, 1, H, W)."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    return 0.2989 * x[:, 0:1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:3]


def _blurred(x: Tensor) -> Tensor:
    """Weighted mean of each pixel and its neighbours; border pixels are unchanged."""
    channels = x.shape[1]
    kernel = torch.ones(3, 3, device=x.device)
    kernel[1, 1] = 5
    inner = F.conv2d(x, (kernel / 13).expand(channels, 1, 3, 3), groups=channels).round()
    edge = F.pad(torch.ones_like(inner), (1, 1, 1, 1))
    return torch.where(edge > 0, F.pad(inner, (1, 1, 1, 1)), x)
