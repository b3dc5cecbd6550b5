"""Hides warnings of libraries from the user; warnings of the user's own code stay visible."""

import logging
import warnings

LIBRARIES = r"(torch|numpy|optuna|ray|mlflow|pydantic|lightning|sqlalchemy|alembic|sklearn|matplotlib|tqdm)(\.|$)"
"""Pattern of the modules of libraries whose warnings are ignored."""

OWN = r"hedgerow\."
"""Pattern of this package's modules. Hedgerow itself counts and reports the divergence of a run, so warnings of NumPy
and PyTorch about it are redundant."""

SHOWN = ".*does not have a deterministic implementation"
"""Warning of PyTorch about an operation on a GPU whose last bits may differ from run to run; shown once."""

TEXTS = ("The given NumPy array is not writable", "There is a performance drop because we have not yet implemented")
"""Beginnings of warnings about how this package uses PyTorch, which Python attributes to the calling line.

Data and broadcasts are views of shared read-only memory; workers read them and never write.
"""


def quiet_libraries() -> None:
    """Ignore warnings of libraries and of this package in this process.

    Filters that the user has set, such as with `python -W`, take precedence.
    """
    warnings.filterwarnings("once", message=SHOWN, append=True)
    for module in (LIBRARIES, OWN):
        warnings.filterwarnings("ignore", module=module, append=True)
    for text in TEXTS:
        warnings.filterwarnings("ignore", message=text, append=True)
    # In a notebook, Ray logs that ipywidgets is missing.
    logging.getLogger("ray.widgets").setLevel(logging.WARNING)
