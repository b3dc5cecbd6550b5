"""Reads experiment files: YAML in, a validated experiment out, or one sentence that says what to mend."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ValidationError, create_model

from hedgerow.algorithms.base import HyperParameters
from hedgerow.platform.errors import UserError
from hedgerow.platform.experiment import Experiment
from hedgerow.platform.messages import explain
from hedgerow.platform.plugins import algorithm_class

Keys = tuple[str | int, ...]
Lines = dict[Keys, str]
"""For each key, by its path, the place where it stands: "FILE:LINE"."""


class _Loader(yaml.SafeLoader):
    """YAML 1.1 as PyYAML reads it, except that 1e-3 is a number, as everybody means it."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def load_experiment(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read and validate an experiment file.

    overrides: "key.key=value" each, as given to --set. Raises UserError with the first mistake of the file.
    """
    values, lines = _read(Path(path))
    for override in overrides:
        _apply(values, lines, override)
    return parse_experiment(values, lines, str(path))


def parse_experiment(values: dict[str, Any], lines: Lines | None = None, source: str = "experiment") -> Experiment:
    """Validate plain values. lines, source: where they stand, for messages. Raises UserError."""
    lines = lines or {}
    section = values.get("algorithm")
    name = section.get("name") if isinstance(section, dict) else None
    hyper: type[HyperParameters] = HyperParameters
    if isinstance(name, str):
        place = lines.get(("algorithm", "name"), source)
        hyper = _named(algorithm_class(name, f"{place}: algorithm.name").Hyper, name)
    model = Experiment[hyper]  # type: ignore[valid-type]
    try:
        return model.model_validate(values, strict=True)
    except ValidationError as error:
        raise UserError(explain(error, model, values, lines, source)) from None


def dump_experiment(experiment: Experiment) -> str:
    """The experiment as YAML with every default filled in; reads back as an equal experiment."""
    return yaml.safe_dump(experiment.model_dump(mode="json"), sort_keys=False, width=100, allow_unicode=True)


def _named(hyper: type[HyperParameters], name: str) -> type[HyperParameters]:
    """The hyperparameters of the user's own algorithm, whose name in the file is its dotted path."""
    if "." not in name:
        return hyper
    return create_model(hyper.__name__, __base__=hyper, name=(Literal[name], name))  # type: ignore[arg-type,valid-type]


def _read(path: Path) -> tuple[dict[str, Any], Lines]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        names = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        close = get_close_matches(path.name, names, n=1)
        hint = f"; did you mean {path.parent / close[0]}?" if close else "; check the path"
        raise UserError(f"{path}: there is no such file{hint}") from None
    except IsADirectoryError:
        raise UserError(f"{path}: this is a folder; name the experiment file in it") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: this is not a text file; an experiment file is YAML in UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise UserError(f"{path}: the file is empty; `hedgerow show` prints what examples hold")
        if not isinstance(node, yaml.MappingNode):
            raise UserError(f"{path}:{node.start_mark.line + 1}: expected `key: value` lines at the top level")
        lines: Lines = {}
        _note_lines(node, (), lines, path)
        return loader.construct_document(node), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = (error.problem or "it is not YAML").replace("\n", " ")
        if "could not determine a constructor" in problem:
            problem = f"{problem.split()[-1]} is a tag that is not allowed here; write a plain value"
        raise UserError(f"{path}:{line}: not valid YAML: {problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from None


def _note_lines(node: yaml.Node, keys: Keys, lines: Lines, path: Path) -> None:
    """Note where every key stands; refuse keys that come twice, of which YAML would silently keep the last."""
    if isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            lines[(*keys, index)] = f"{path}:{child.start_mark.line + 1}"
            _note_lines(child, (*keys, index), lines, path)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, child in node.value:
        here = f"{path}:{key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode):
            raise UserError(f"{here}: a key must be a word")
        inner = (*keys, key.value)
        if inner in lines:
            raise UserError(f"{here}: {'.'.join(map(str, inner))} is given twice; remove one of the two")
        lines[inner] = here
        _note_lines(child, inner, lines, path)


def _apply(values: dict[str, Any], lines: Lines, override: str) -> None:
    """Apply one --set KEY=VALUE."""
    place = f"--set {override}"
    path, equals, text = override.partition("=")
    keys = path.split(".")
    if not equals or not all(keys):
        raise UserError(f"{place}: write --set KEY=VALUE, such as --set algorithm.lr=0.05")
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError:
        raise UserError(f"{place}: {text!r} is not a YAML value; quote it") from None
    node = values
    for depth, key in enumerate(keys[:-1]):
        child = node.setdefault(key, {})
        if not isinstance(child, dict):
            raise UserError(
                f"{place}: {'.'.join(keys[: depth + 1])} is not a section, so it has no key {keys[depth + 1]!r}"
            )
        node = child
    node[keys[-1]] = value
    lines[tuple(keys)] = place
