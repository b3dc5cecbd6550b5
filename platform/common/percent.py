"""Percentages as text that people read."""

from collections.abc import Sequence


def percent(value: float | None, targets: Sequence[float] = (), digits: int = 1) -> str:
    """A share such as "95.0 %", with more digits if the rounded share would reach a target that it misses."""
    if value is None:
        return "-"
    while digits < 8 and any(value < target <= round(value, digits + 2) for target in targets):
        digits += 1
    return f"{100 * value:.{digits}f} %"


def short_percent(share: float, digits: int = 6) -> str:
    """A share without trailing zeros, such as "95 %" or "0.5 %". digits: most significant digits."""
    return f"{100 * share:.{digits}g} %"
