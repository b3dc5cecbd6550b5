"""Hedgerow: federated-learning experiments on Ray.

import hedgerow

finished = hedgerow.run("examples/digits_fedavg.yaml", rounds=20, algorithm__lr=0.05)
finished.frame["test_accuracy"].plot()
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


@cache
def _homes() -> dict[str, str]:
    """Public name -> module that defines it, as `__init__.pyi` lists them."""
    lines = Path(__file__).with_suffix(".pyi").read_text().splitlines()
    found = [line.split() for line in lines if line.startswith("from ")]
    return {name: module for _, module, _, name, *_ in found}


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that `import hedgerow` alone stays fast."""
    if name == "__version__":
        from importlib.metadata import version

        return version("hedgerow")
    if name in _homes():
        # Before the libraries are imported, which is when some of them warn.
        import_module("hedgerow.platform.common.quiet").quiet_libraries()
        return getattr(import_module(_homes()[name]), name)
    raise AttributeError(f"module 'hedgerow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["__version__", *_homes()]
