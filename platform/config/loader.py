"""Reads experiment files and validates them. Each mistake is reported in one sentence with the fix."""

import copyreg
import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hedgerow.algorithms import ALGORITHMS
from hedgerow.algorithms.core.hyperparameters import Settings
from hedgerow.algorithms.core.own_code import enter_folders, own_code
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.registry import WITHOUT_IMPORTS
from hedgerow.platform.common.servers import name_server
from hedgerow.platform.config.composition import fill_in_environment, locate_files, merge
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.problem_section import QuadraticProblem
from hedgerow.platform.config.registries import algorithm_class, algorithms
from hedgerow.platform.config.validation_errors import Keys, dotted, explain, sections_at
from hedgerow.platform.config.yaml_reader import Lines, dump_values, parse_yaml

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\.\w+)*=.*")


class Override(str):
    """Place of a key that an override has set."""


def load_experiment(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read and validate an experiment file.

    overrides: strings "key.key=value", as for --set. Raises UserError with all mistakes of the file.
    """
    enter_folder_of(Path(path))
    values, lines = read_file(Path(path), overrides)
    # A plain run ignores the section of `hedgerow search` and uses the values outside it.
    values.pop("search", None)
    return parse_experiment(values, lines, str(path))


def enter_folder_of(file: Path) -> None:
    """In a Python program, the user's own code is next to an experiment file, but not in the folder of a run."""
    if own_code().is_program and not file.with_name("run.json").exists():
        enter_folders([file.parent])


def read_experiment(path: str | Path) -> Experiment:
    """Read the experiment file of a run without importing the classes that it names.

    For callers that do not continue the run. Keys of users' own classes are not validated. Raises UserError.
    """
    values, lines = read_file(Path(path), imports=False)
    values.pop("search", None)
    return _validated(values, lines, str(path), imports=False)


def read_file(path: Path, overrides: Sequence[str] = (), imports: bool = True) -> tuple[dict[str, Any], Lines]:
    """Returns the plain values of an experiment file after the overrides, and the place of each key.

    Files that it names are in its folder, in the working directory, or in the folder of the data sets. imports: whether
    classes that it names may be imported, whose keys exclude each other.
    """
    values, lines = _composed(path, (), imports)
    for override in overrides:
        apply_override(values, lines, override)
    return locate_files(fill_in_environment(values, lines), Path()), lines


def _composed(path: Path, above: tuple[Path, ...], imports: bool) -> tuple[dict[str, Any], Lines]:
    """Values of a file and of the file that its key `base` names. above: files that build on this one."""
    values, lines = _read(path)
    values = locate_files(fill_in_environment(values, lines), path.parent)
    base, place = values.pop("base", None), lines.pop(("base",), "")
    if base is None:
        return values, lines
    if not isinstance(base, str):
        raise UserError(f"{place}: base: expected the path of an experiment file; give one, or remove `base`")
    file = path.parent / base
    if file.resolve() in (seen := (*above, path.resolve())):
        raise UserError(f"{place}: base: {file} builds on this file, which builds on it; remove one of the two")
    if not file.is_file():
        raise UserError(f"{place}: base: there is no file {file}; the path is relative to the folder of this file")
    return merge(_composed(file, seen, imports), (values, lines), partial(alternatives, imports=imports))


def parse_experiment(values: dict[str, Any], lines: Lines | None = None, source: str = "experiment") -> Experiment:
    """Validate plain values. lines, source: places of the keys and of the rest, for messages. Raises UserError."""
    lines = dict(lines or {})
    experiment = _validated(values, lines, source)
    _fits_its_loop(experiment, lines.get(("algorithm", "name"), source))
    return experiment


def _validated(values: dict[str, Any], lines: Lines, source: str, imports: bool = True) -> Experiment:
    try:
        return Experiment.model_validate(values, strict=True, context=None if imports else WITHOUT_IMPORTS)
    except ValidationError as error:
        raise explain(error, Experiment, values, lines, source, imports) from None


def _fits_its_loop(experiment: Experiment, place: str) -> None:
    """Check that the algorithm fits the task: a stream, or a bilevel problem. Raises UserError."""
    stream, name = experiment.task.partition.is_stream, experiment.algorithm.name
    algorithm = algorithm_class(name)
    if algorithm.trains_on == "stream" and not stream:
        raise UserError(f"{place}: algorithm.name: {name} learns a stream of tasks; set `task.partition.kind: stream`")
    if stream and algorithm.trains_on != "stream":
        choices = ", ".join(sorted(name for name in ALGORITHMS if algorithms.resolve(name).trains_on == "stream"))
        raise UserError(f"{place}: algorithm.name: {name} does not learn streams; choose one of {choices}")
    problem, bilevel = experiment.task.problem, "bilevel" in algorithm.needs
    if bilevel and problem is None:
        raise UserError(
            f"{place}: algorithm.name: {name} is a bilevel algorithm; set `task.problem`, such as {{kind: cleaning}}"
        )
    if isinstance(problem, QuadraticProblem) and not bilevel:
        choices = ", ".join(sorted(name for name in ALGORITHMS if "bilevel" in algorithms.resolve(name).needs))
        raise UserError(f"{place}: algorithm.name: {name} is not a bilevel algorithm; choose one of {choices}")


def dump_experiment(experiment: Experiment) -> str:
    """Returns the experiment as YAML with every default filled in; it reads back as an equal experiment."""
    return dump_values(experiment.model_dump(mode="json"))


def _reduce(experiment: Experiment) -> tuple[Any, ...]:
    """Pickle an experiment as plain values, since the classes of its sections may exist for it alone.

    The classes that it names are imported where it is unpickled.
    """
    return parse_experiment, (experiment.model_dump(mode="json"),)


copyreg.pickle(Experiment, _reduce)


def _read(path: Path) -> tuple[dict[str, Any], Lines]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        names = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        close = get_close_matches(path.name, names, n=1)
        if _ASSIGNMENT.fullmatch(str(path)):
            raise UserError(f"{path}: there is no such file; did you mean --set {path}?") from None
        hint = f"; did you mean {path.parent / close[0]}?" if close else "; check the path"
        raise UserError(f"{path}: there is no such file{hint}") from None
    except IsADirectoryError:
        raise UserError(f"{path}: this is a folder; name the experiment file in it") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: this is not a text file; an experiment file is YAML in UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from None
    values, lines = parse_yaml(text, lambda line: f"{path}:{line}", ())
    if values is None:
        raise UserError(f"{path}: the file is empty; begin with `name: ...`, as the files in examples/ do")
    if not isinstance(values, dict):
        raise UserError(f"{lines[()]}: expected `key: value` lines at the top level; begin with `name: ...`")
    return values, lines


def apply_override(values: dict[str, Any], lines: Lines, override: str) -> None:
    """Apply one --set KEY=VALUE to plain values, and record its place in `lines`. Raises UserError."""
    place = Override(f"--set {' '.join(override.split())}")
    path, equals, text = override.partition("=")
    keys = tuple(key.strip() for key in path.split("."))
    if not equals or not all(keys):
        raise UserError(f"{place}: write --set KEY=VALUE, such as --set algorithm.lr=0.05")
    value, inner = parse_yaml(text, lambda line: place, keys)
    set_value(values, lines, keys, value, place, "--set ")
    lines.update(inner)


def set_value(
    values: dict[str, Any], lines: Lines, keys: tuple[str, ...], value: Any, place: str, word: str = ""
) -> None:
    """Set one key of plain values, replacing any value, and record its place in `lines`. Raises UserError.

    Keys that exclude this one are removed, unless an override has set them too.
    word: prefix of KEY=VALUE in messages, such as "--set ".
    """
    others = alternatives(values, keys) if value is not None else ()
    node: Any = values
    path: Keys = ()
    for key in keys[:-1]:
        path = (*path, _step(node, key, path, place, word))
        at: Any = path[-1]
        child = node[at] if isinstance(node, list) else node.get(key)
        is_list = isinstance(child, list) and bool(child) and all(isinstance(one, dict) for one in child)
        if child is not None and not is_list and not isinstance(child, dict):
            raise UserError(f"{place}: {dotted(path)} is not a section; set it as a whole: {word}{dotted(path)}=...")
        # Copied, since an alias in the file may refer to the same section elsewhere.
        node[at] = node = list(child) if is_list else dict(child or {})
        lines.setdefault(path, place)
    path = (*path, _step(node, keys[-1], path, place, word))
    for stale in [entry for entry in lines if entry[: len(path)] == path]:
        del lines[stale]
    node[path[-1]] = value
    lines[path] = place
    if path in (("tracking",), ("tracking", "uri")):
        # The user names this server.
        name_server(value.get("uri") if isinstance(value, dict) else value)
    for other in others:
        if not isinstance(lines.get((*path[:-1], other)), Override):
            node.pop(other, None)
            lines.pop((*path[:-1], other), None)


def _step(node: Any, key: str, path: Keys, place: str, word: str) -> str | int:
    """Returns the key, as an index if the node is a list: `transforms.0.norm`. Raises UserError."""
    if not isinstance(node, list):
        return key
    if key.isdecimal() and int(key) < len(node):
        return int(key)
    raise UserError(
        f"{place}: {dotted(path)} is a list of {len(node)} entries and has no {key!r}; set it as a whole: "
        f"{word}{dotted(path)}=..."
    )


def alternatives(values: dict[str, Any], keys: tuple[str, ...], imports: bool = True) -> tuple[str, ...]:
    """Keys of the same section that cannot have a value if this one has. values: all values of the file."""
    pairs = {
        pair
        for kind in sections_at(Experiment, keys[:-1], values, imports)
        if issubclass(kind, Settings)
        for pair in (*kind.exclusive_keys(), *kind.rivals)
    }
    return tuple(sorted({b for a, b in pairs if a == keys[-1]} | {a for a, b in pairs if b == keys[-1]}))
