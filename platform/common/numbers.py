"""Numbers as text that people read, in tables, figures and sentences."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

SIZES = ("B", "kB", "MB", "GB", "TB")

LARGE = {"loss": 1e6, "count": 1e9}
"""Larger numbers are printed in scientific notation."""

SHARES = ("weight", "probability", "ctm", "ltm")
"""Quantities that are shown in per cent, in addition to every accuracy."""


@runtime_checkable
class Summary(Protocol):
    """Several numbers as one cell of a table, such as a mean with its deviation."""

    mean: float

    def text(self, unit: str) -> str:
        """The cell; numbers as `number` writes them."""


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

    def text(self, unit: str) -> str:
        """Text such as "94.2 ± 0.3 %"."""
        mean = number(self.mean, unit)
        return mean if self.std is None else f"{mean.partition(' ')[0]} ± {number(self.std, unit, digits=2)}"


def unit_of(name: str) -> str:
    """Unit of a quantity by its name: "%", "loss", "B", "s", or "" for a plain number. A dotted key is a setting."""
    if "." in name:
        return ""
    if "accuracy" in name or name.removeprefix("best_") in SHARES:
        return "%"
    words = name.split("_")
    return "loss" if "loss" in name else "B" if "bytes" in words else "s" if words[-1] == "seconds" else ""


def number(
    value: Any, unit: str = "", targets: Sequence[float] = (), digits: int = 4, largest: float | None = None
) -> str:
    """A value as text: "95.0 %", a loss with three decimals, "1.2 MB", "12.3 s", "12,345", or four significant digits.

    Missing values are "-"; settings that are not numbers are written as in a file. targets: see `percent`. digits:
    significant digits of plain numbers. largest: size whose prefix is used.
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Summary):
        return value.text(unit)
    if not isinstance(value, int | float):
        return str(value)
    if not math.isfinite(value):
        return f"{value:g}"
    if unit == "%":
        return percent(value, targets)
    if unit == "B":
        most = abs(value) if largest is None else largest
        power = next((i for i in range(len(SIZES) - 1) if most < 1000 ** (i + 1)), len(SIZES) - 1)
        return f"{value / 1000**power:.3g} {SIZES[power]}"
    if unit == "s":
        return f"{value:.3g} s" if abs(value) < 1000 else f"{value:,.0f} s"
    if unit in LARGE:
        usual = f"{value:.3f}" if unit == "loss" else f"{value:,.0f}"
        return usual if abs(value) < LARGE[unit] else f"{value:.{2 if unit == 'loss' else 3}e}"
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}" if abs(value) < 1e4 else f"{value:g}"


def column(values: Sequence[Any], unit: str = "", targets: Sequence[float] = ()) -> list[str]:
    """Values of one column as text; sizes in bytes have one prefix."""
    numbers = [abs(value) for value in values if unit == "B" and isinstance(value, int | float)]
    return [number(value, unit, targets, largest=max(numbers, default=None)) for value in values]


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
    """A difference with its interval, such as "+1.2 [+0.5, +1.9] points". ratio: of logarithms, "×1.8 [1.5, 2.1]"."""

    def text(value: float) -> str:
        return f"{math.exp(value):.3g}" if ratio else f"{100 * value if unit == '%' else value:+.3g}"

    interval = "" if low is None or high is None else f" [{text(low)}, {text(high)}]"
    return f"{'×' * ratio}{text(mean)}{interval}{' points' * (unit == '%' and not ratio)}"


def p_value(p: float) -> str:
    """A p-value with two significant digits, or "<0.001"."""
    return "<0.001" if p < 0.001 else f"{p:.2g}"


def cost_text(needed: float | None, spent: float, reference: float | None) -> str:
    """Transmissions to a target, written as in the thesis: "148 (2.0×)", or "1000+ (>6.8×)" if it was not reached.

    needed: transmissions to the target, None if it was not reached. spent: total transmissions. reference:
    transmissions that the gain refers to.
    """
    if needed is not None:
        return f"{number(needed)} ({needed / reference:.1f}×)" if reference else number(needed)
    # If less was spent than the reference needed, the gain is unknown.
    return f"{number(spent)}+ (>{spent / reference:.1f}×)" if reference and spent > reference else f"{number(spent)}+"
