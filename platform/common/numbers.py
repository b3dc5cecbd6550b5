"""Numbers as text that people read, in tables, figures and sentences."""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol, runtime_checkable

SIZES = ("B", "kB", "MB", "GB", "TB")

LARGE = {"loss": 1e6, "count": 1e9}
"""Larger numbers are printed in scientific notation."""

SHARES = ("weight", "probability", "ctm", "ltm")
"""Quantities that are shown in per cent, in addition to every accuracy."""

NAMES = {
    "bytes": "sent",
    "ctm": "CTM",
    "ltm": "LTM",
    "memory_vectors": "models kept",
    "memory_tasks": "tasks kept",
    "seconds": "time",
    "simulated_seconds": "simulated time",
}
"""Names of quantities for people, where they are not those of the records."""

ENDS = {"_worst10": ", worst 10 %", "_highest": ", highest", "_lowest": ", lowest"}
"""Ends of names of metrics of clients."""

TARGET = re.compile(r"(rounds|transmissions|ratio)_to_((?:\w+ )?[\d.e-]+)")
"""Names of the costs of reaching a target: the cost, and the label of the target."""

TRANSMISSIONS = (
    "transmissions: all that was sent, in units of what FedAvg sends in a round; to a target: until it is first "
    "reached; +: not reached"
)
"""Explanation of columns with transmissions."""


@runtime_checkable
class Summary(Protocol):
    """Several numbers as one cell of a table, such as a mean with its deviation."""

    mean: float

    @property
    def numbers(self) -> Sequence[float]:
        """The numbers of the cell."""

    def text(self, texts: Sequence[str]) -> str:
        """The cell. texts: of `numbers`, with their unit."""


@dataclass(frozen=True)
class MeanStd:
    """Mean and sample standard deviation (n - 1) of some values; a single value has no standard deviation."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "MeanStd":
        """values: at least one."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))

    @classmethod
    def known(cls, values: Sequence[float | None]) -> "MeanStd | None":
        """Returns None if a value is missing or not finite: the mean of the others is biased."""
        finite = [value for value in values if value is not None and math.isfinite(value)]
        return cls.of(finite) if len(finite) == len(values) else None

    @property
    def numbers(self) -> list[float]:
        return [self.mean] if self.std is None else [self.mean, self.std]

    def text(self, texts: Sequence[str]) -> str:
        """Text such as "94.2 ± 0.3 %"."""
        return " ± ".join([*(text.partition(" ")[0] for text in texts[:-1]), texts[-1]])


def unit_of(name: str) -> str:
    """Unit of a quantity by its name: "%", "loss", "B", "s", "setting" of a dotted key, or "" for a plain number."""
    if TARGET.fullmatch(name):
        return ""
    if "." in name:
        return "setting"
    if "accuracy" in name or name.removeprefix("best_").removeprefix("smoothed_") in SHARES:
        return "%"
    words = name.split("_")
    return "loss" if "loss" in name else "B" if "bytes" in words else "s" if words[-1] == "seconds" else ""


def name_of(key: str) -> str:
    """Name of a quantity for people, by its name in records: "test accuracy", "transmissions to 80 %"."""
    if target := TARGET.fullmatch(key):
        return f"{target[1]} to {target_heading(target[2])}"
    stem, end = next(((key.removesuffix(end), words) for end, words in ENDS.items() if key.endswith(end)), (key, ""))
    return NAMES.get(key) or stem.replace("_", " ") + end


def target_heading(label: str) -> str:
    """Heading of a target, from its label: "80 %", or "loss 0.05"."""
    return label if is_no_share(label) else short_percent(float(label))


def is_no_share(label: str) -> bool:
    """Whether the label of a target is that of another metric than an accuracy."""
    return " " in label


def number(
    value: Any,
    unit: str = "",
    targets: Sequence[float] = (),
    digits: int = 4,
    decimals: int | None = None,
    largest: float | None = None,
) -> str:
    """A value as text: "95.0 %", a loss with three decimals, "1.2 MB", "12.3 s", "12,345", or four significant digits.

    Missing values are "-"; settings that are not numbers are written as in a file. targets: see `percent`. digits:
    significant digits of plain numbers. decimals: of percentages, sizes, seconds, means of counts and plain numbers;
    -1: scientific. largest: size whose prefix is used.
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Summary):
        return value.text([number(one, unit, targets, digits, decimals, largest) for one in value.numbers])
    if not isinstance(value, int | float):
        return str(value)
    if not math.isfinite(value):
        return f"{value:g}"
    if unit == "%":
        return percent(value, targets, 1 if decimals is None else decimals)
    if unit == "B":
        power = _prefix(abs(value) if largest is None else largest)
        scaled = value / 1000**power
        return f"{scaled:.3g} {SIZES[power]}" if decimals is None else f"{scaled:.{decimals}f} {SIZES[power]}"
    if unit == "s":
        fixed = ",.0f" if abs(value) >= 1000 else ".3g" if decimals is None else f".{decimals}f"
        return f"{value:{fixed}} s"
    if unit in LARGE:
        usual = f"{value:.3f}" if unit == "loss" else f"{value:,.{decimals or 0}f}"
        return usual if abs(value) < LARGE[unit] else f"{value:.{2 if unit == 'loss' else 3}e}"
    if decimals is not None:
        return f"{value:.3e}" if decimals < 0 else f"{value:.{decimals}f}"
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}" if abs(value) < 1e4 else f"{value:g}"


def column(values: Sequence[Any], unit: str = "", targets: Sequence[float] = ()) -> list[str]:
    """Values of one column as text, with the same decimals; sizes in bytes have one prefix. Settings are as in a file.

    The decimals are those of the value that needs the most, but no more than two, or than the largest value has, unless
    a smaller value would be 0 (at most four then). Whole numbers are exact.
    """
    each = (value.numbers if isinstance(value, Summary) else [value] for value in values)
    numbers = [one for part in each for one in part if isinstance(one, int | float) and not isinstance(one, bool)]
    sizes = [abs(one) for one in numbers if math.isfinite(one)]
    largest, decimals = max(sizes, default=0), None
    if unit == "%":
        decimals = max((len(percent(one, targets).partition(".")[2]) - 2 for one in numbers), default=1)
    elif unit not in ("loss", "setting") and any(sizes) and (unit or not all(isinstance(one, int) for one in numbers)):
        scale = 1000 ** _prefix(largest) if unit == "B" else 1
        needed = [_decimals(one / scale, 3 if unit else 4) for one in sizes]
        decimals = min(max(needed), max(2, needed[sizes.index(largest)]))
        least = min(filter(None, sizes)) / scale
        while decimals < 4 and not round(least, decimals):
            decimals += 1
        if not unit and (largest >= LARGE["count"] or not round(least, decimals)):
            decimals = -1
    return [number(value, unit, targets, decimals=decimals, largest=largest) for value in values]


def _decimals(value: float, digits: int) -> int:
    """Decimals of a value that is rounded to significant digits, without trailing zeros."""
    return max(0, -int(Decimal(f"{value:.{digits - 1}e}").normalize().as_tuple().exponent))


def _prefix(size: float) -> int:
    """Index of the prefix in SIZES."""
    return next((i for i in range(len(SIZES) - 1) if size < 1000 ** (i + 1)), len(SIZES) - 1)


def percent(share: float | None, targets: Sequence[float] = (), digits: int = 1) -> str:
    """A share such as "95.0 %", with more digits if the rounded share would reach a target that it misses."""
    if share is None:
        return "-"
    while digits < 8 and any(share < target <= round(share, digits + 2) for target in targets):
        digits += 1
    return f"{100 * share:.{digits}f} %"


def short_percent(share: float, digits: int = 6) -> str:
    """A share without trailing zeros, such as "95 %" or "0.5 %". digits: most significant digits."""
    return f"{100 * share:.{digits}g} %"


def tick(value: float, unit: str = "") -> str:
    """A value of an axis: "95 %", 1.2M for 1200000, 0.05."""
    if unit == "%":
        return short_percent(value, digits=3)
    for divisor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= divisor:
            return f"{value / (1e3 if prefix == 'k' else divisor):.4g}{prefix}"
    return f"{value:.4g}"


def difference(mean: float, low: float | None, high: float | None, unit: str = "", ratio: bool = False) -> str:
    """How B differs from A, such as "+1.20 [+0.50, +1.90] points". ratio: of logarithms, "1.80 × A [1.50, 2.10]"."""
    digits = "+.2f" if unit == "%" else "+.3f" if unit == "loss" else "+.3g"

    def text(value: float) -> str:
        if ratio:
            times = math.exp(value)
            return f"{times:.2f}" if times >= 0.1 else f"{times:.2g}"
        return f"{100 * value if unit == '%' else value:{digits}}"

    interval = "" if low is None or high is None else f" [{text(low)}, {text(high)}]"
    return f"{text(mean)}{' × A' * ratio}{interval}{' points' * (unit == '%' and not ratio)}"


def p_value(p: float) -> str:
    """A p-value with three decimals, or "<0.001"."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def cost_text(needed: float | None, spent: float, reference: float | None, whose: str = "the cheapest") -> str:
    """Transmissions to a target: "148 (2.0 × the cheapest)", or "1000+ (>6.8 × the cheapest)" if it was not reached.

    needed: transmissions to the target, None if it was not reached. spent: total transmissions. reference:
    transmissions of `whose` that the ratio refers to.
    """
    cost, over = (f"{number(spent)}+", ">") if needed is None else (number(needed), "")
    # If less was spent than the reference needed, the ratio is unknown.
    if not reference or (needed is None and spent <= reference):
        return cost
    return f"{cost} ({over}{(spent if needed is None else needed) / reference:.1f} × {whose})"
