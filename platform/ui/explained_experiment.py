"""Experiment files with their keys explained."""

import textwrap
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hedgerow.algorithms.core.hyperparameters import HyperParameters
from hedgerow.algorithms.optim.local_sgd import LocalSolver
from hedgerow.platform.common.section import section_classes, tag
from hedgerow.platform.config.choices import flags, said, source
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import apply_override, parse_experiment
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.platform.config.validation_errors import Keys
from hedgerow.platform.config.yaml_reader import dump_inline
from hedgerow.platform.runtime.factory import check

COLUMN, WIDTH = 36, 120
"""Column of comments, and line length."""

ROUNDS = 20
MAPS = {"name": "resnet", "channels": [8, 16], "blocks": [1, 1]}
"""A small network with feature maps."""

NEEDS: dict[str, dict[str, Any]] = {
    "stream": {"task": {"partition": {"kind": "stream", "tasks": ROUNDS, "train": 100}}},
    "teacher": {"task": {"teacher": {"model": {"name": "mlp", "hidden": [100]}, "epochs": 5}}},
    "feature_maps": {"task": {"model": MAPS, "teacher": {"model": MAPS | {"channels": [16, 32]}}}},
    "early_exit": {"task": {"model": {**MAPS, "name": "resnet_exit", "exit_after": 1}}},
    "all_clients": {"clients_per_round": "all", "task": {"partition": {"clients": 10}}},
    "is_personal": {"task": {"partition": {"clients": 20, "client_test_fraction": 0.3}}},
    "bilevel": {"task": {"problem": {"kind": "cleaning"}}},
    "cleaning": {"task": {"problem": {"kind": "cleaning"}}},
    "validation": {"task": {"partition": {"upper_level_fraction": 0.3}}},
    "public": {"task": {"public": {"samples": 640}}},
}
"""Flag of an algorithm -> settings that its task needs."""

FIRST = {"name", "rounds", "clients_per_round", "task", "algorithm", "lr", "epochs", "steps", "batch_size"}
"""Keys that a short file has in any case, besides those that the algorithm itself adds; others if not the default."""

LISTED = {"algorithm": "algorithms", "data": "datasets", "partition": "partitions", "model": "models"}
"""Section -> the kind of its choices for `hedgerow list`."""

SETTINGS: dict[str, dict[str, Any]] = {"semckd": {"lr": 0.01}}
"""Settings of algorithms that diverge on this task with their defaults."""


def complete(name: str, algorithm: str, overrides: Sequence[str] = (), data_root: Path | None = None) -> Experiment:
    """Returns an experiment on digits with all that the algorithm needs. Raises UserError if it would not run."""
    algorithm_type = algorithm_class(algorithm, "--algorithm")
    values: dict[str, Any] = {
        "name": name,
        "rounds": ROUNDS,
        "task": {
            "data": {"name": "digits"},
            "partition": {"kind": "dirichlet", "clients": 100, "alpha": 0.3},
            "model": {"name": "mlp"},
        },
        "algorithm": {"name": algorithm, **SETTINGS.get(algorithm, {})},
    }
    has = flags(algorithm_type)
    for settings in (settings for flag, settings in NEEDS.items() if flag in has):
        _merge(values, settings)
    lines = dict[Keys, str]()
    for override in overrides:
        apply_override(values, lines, override)
    experiment = parse_experiment(values, lines, "new experiment")
    check(experiment, data_root)
    return experiment


def commented(experiment: Experiment, every: bool = True) -> str:
    """Returns the experiment as YAML, with descriptions: of every key, or of those that most experiments set."""
    return "\n".join(_section(experiment, 0, every)) + "\n"


def _section(section: BaseModel, depth: int, every: bool, instead: str = "") -> list[str]:
    """The lines of a section. instead: sections that may replace it."""
    fields, lines = type(section).model_fields, []
    first = FIRST | (fields.keys() - LocalSolver.model_fields.keys() if isinstance(section, HyperParameters) else set())

    def place(key: str) -> tuple[bool, bool]:
        # The key that selects a section comes first; at the top level, sections come after single keys.
        return key not in ("name", "kind"), depth == 0 and isinstance(getattr(section, key), BaseModel)

    for key in sorted(fields, key=place):
        value, field = getattr(section, key), fields[key]
        default = field.get_default(call_default_factory=True, validated_data={})
        if not every and (value is None or (value == default and key not in first and key != "kind")):
            continue
        if isinstance(value, BaseModel):
            lines += ([""] if depth == 0 else []) + _line(
                depth, f"{key}:", _what(key, value, field) if every or key == "algorithm" else ""
            )
            lines += _section(value, depth + 1, every, _others(key, value, field, every))
        else:
            selects = key in ("name", "kind") and depth > 0
            comment = instead if selects and not field.description else _meaning(field)
            lines += _line(depth, dump_inline(section.model_dump(mode="json", include={key})), comment)
    return lines


def _what(key: str, section: BaseModel, field: FieldInfo) -> str:
    """Description of a section."""
    if key == "algorithm":
        algorithm = algorithm_class(str(getattr(section, "name", "")))
        return f"{source(algorithm)} {said(algorithm)}"
    return said(type(section)) or field.description or ""


def _others(key: str, section: BaseModel, field: FieldInfo, every: bool) -> str:
    listed = LISTED.get(key)
    if listed and (key == "algorithm" or not every):
        return f"`hedgerow list {listed}` has the others"
    names = [tag(kind) or "the dotted path of your own" for kind in section_classes(field.annotation)]
    others = [name for name in names if name != tag(type(section))]
    return f"or {', '.join(others)}" if others else ""


def _meaning(field: FieldInfo) -> str:
    """Description of a key, with its allowed values if it has a fixed set of them."""
    parts = (field.annotation, *get_args(field.annotation))
    words = [str(word) for part in parts if get_origin(part) is Literal for word in get_args(part)]
    allowed = f"one of {', '.join(words)}" if len(words) > 1 else ""
    return "; ".join(part for part in (field.description, allowed) if part)


def _line(depth: int, text: str, comment: str) -> list[str]:
    """Returns a line with its comment, which continues on further lines."""
    line = "  " * depth + text
    parts = textwrap.wrap(comment, WIDTH - COLUMN - 2, break_long_words=False, break_on_hyphens=False)
    if not parts:
        return [line]
    first = f"{line:<{COLUMN - 1}} # {parts[0]}"
    return [first, *(" " * COLUMN + f"# {part}" for part in parts[1:])]


def _merge(values: dict[str, Any], more: dict[str, Any]) -> None:
    """Merge values into sections; a section with a name or kind replaces the one that was there."""
    for key, value in more.items():
        inside = isinstance(value, dict) and isinstance(values.get(key), dict) and not {"name", "kind"} & value.keys()
        if inside:
            _merge(values[key], value)
        else:
            values[key] = deepcopy(value)
