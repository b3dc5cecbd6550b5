"""Keeps messages of libraries from the user; those of the user's own code stay visible."""

import warnings

LIBRARIES = r"(torch|numpy|optuna|ray|mlflow|pydantic|lightning|sqlalchemy|alembic|sklearn|matplotlib)(\.|$)"
"""Modules to which the messages of libraries belong."""

OWN = r"hedgerow\."
"""Modules of this package: what NumPy and PyTorch say about a diverging run is counted and reported here anyway."""

TEXTS = ("The given NumPy array is not writable", "There is a performance drop because we have not yet implemented")
"""Beginnings of messages about how this package uses PyTorch, which belong to whatever line called it.

Data and broadcasts are views of shared read-only memory; a worker reads them and never writes.
"""


def quiet_libraries() -> None:
    """Ignore warnings of libraries and of this package in this process.

    Filters that the user has set, as by `python -W`, come first.
    """
    for module in (LIBRARIES, OWN):
        warnings.filterwarnings("ignore", module=module, append=True)
    for text in TEXTS:
        warnings.filterwarnings("ignore", message=text, append=True)
