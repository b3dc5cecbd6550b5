"""Body of the command `new`: an experiment file with its keys explained, or an algorithm with its test."""

import keyword
import re
from collections.abc import Sequence
from importlib import resources, util
from pathlib import Path

import click

from hedgerow.platform.common.errors import UserError, unwritable
from hedgerow.platform.common.user_cache import cached_answer
from hedgerow.platform.config.yaml_reader import dump_inline
from hedgerow.platform.ui.command_output import CommandOutput

SCHEMA = "hedgerow.schema.json"
"""The usual file of `hedgerow schema -o`. Editors use it if it is next to an experiment file."""

_SIMPLE = r"[A-Za-z][A-Za-z0-9_-]*"
"""Names of experiments that change a single line of the file."""


def new_experiment(
    name: str, algorithm: str, overrides: Sequence[str], data_root: Path | None, every: bool
) -> CommandOutput:
    """Write NAME.yaml: an experiment that runs as it is, with its keys and their descriptions.

    every: with every key and its default. Raises UserError if it would not run or the file exists.
    """
    file = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    simple = re.fullmatch(_SIMPLE, file.stem) and "." not in algorithm and not overrides and data_root is None
    if simple:
        text = cached_answer(("new", algorithm, "all" * every), lambda: _text("name", algorithm, (), None, every))
        line = dump_inline({"name": file.stem})
        text = re.sub(r"^name: name *(?= #)", lambda old: f"{line:<{len(old[0])}}", text, count=1, flags=re.MULTILINE)
    else:
        text = _text(file.stem, algorithm, overrides, data_root, every)
    schema = f"# yaml-language-server: $schema={SCHEMA}\n" if (file.parent / SCHEMA).exists() else ""
    keys = "Every key of an experiment." if every else "`hedgerow new experiment NAME --all` has every key."
    head = (
        f"# {keys} `hedgerow run {file.name}` runs it,\n# `--set rounds=50` overrides a key, and `hedgerow schema "
        f"-o {SCHEMA}` writes a schema for editors.\n\n"
    )
    _write({file: schema + head + text})
    return _files_output([file], f"hedgerow run {file}")


def _text(name: str, algorithm: str, overrides: Sequence[str], data_root: Path | None, every: bool) -> str:
    # Imported here, since it takes seconds.
    from hedgerow.platform.ui.explained_experiment import commented, complete

    return commented(complete(name, algorithm, overrides, data_root), every)


def new_algorithm(name: str) -> CommandOutput:
    """Write NAME.py, a working algorithm, and its test, test_NAME.py, to the working directory. Raises UserError."""
    if not name.isidentifier() or not name.islower() or keyword.iskeyword(name):
        raise UserError(f"new algorithm: {name!r} cannot name a module; write lower case, digits and _: my_average")
    files = {Path(f"{name}.py"): "my_average.py", Path(f"test_{name}.py"): "test_my_average.py"}
    if not any(file.exists() for file in files) and util.find_spec(name):
        raise UserError(f"new algorithm: it would hide the existing module {name!r}; choose another name")
    kind = "".join(part.capitalize() for part in name.split("_"))
    home = resources.files("hedgerow.platform.ui.templates")
    texts = {file: (home / template).read_text(encoding="utf-8") for file, template in files.items()}
    _write({file: text.replace("MyAverage", kind).replace("my_average", name) for file, text in texts.items()})
    return _files_output(
        list(files), f"pytest test_{name}.py; hedgerow new experiment {name}_run --algorithm {name}.{kind}"
    )


def _write(files: dict[Path, str]) -> None:
    """Write all files, or none if one exists. Raises UserError."""
    for file in files:
        if file.exists():
            raise UserError(f"{file} exists and is not overwritten; choose another name")
    for file, text in files.items():
        try:
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise unwritable("new", file, error) from None


def _files_output(files: list[Path], then: str) -> CommandOutput:
    def render() -> None:
        for file in files:
            click.echo(f"written: {file}")
        click.echo(f"next: {then}")

    return CommandOutput({"files": files, "next": then}, render)
