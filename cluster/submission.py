"""Prepares a job: checks its command and stages the working directory, this version of Hedgerow and its environment."""

import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from inspect import unwrap
from pathlib import Path
from typing import Any

import click
from pathspec import GitIgnoreSpec

import hedgerow
from hedgerow.platform.common.errors import UserError, one_line
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.config.yaml_reader import parse_yaml
from hedgerow.platform.storage.remote import is_uri
from hedgerow.platform.tracking.run_folder import COMMIT, SOURCE, git_commit, source_commit
from hedgerow.searchspaces.spaces.search_file import load_search

COMMANDS = ("run", "search", "table", "resume", "plan")
"""Commands that can be submitted."""

LEFT_HERE = ["/runs", "/data", ".git", ".venv", "__pycache__", "*.db"]
"""Parts of the working directory that are not uploaded, in addition to the entries of .gitignore and .rayignore."""

MOST = 500e6
"""Size in bytes from which the working directory is not uploaded.

Ray refuses an archive of more than 512 MiB, but only after the upload, which takes minutes.
"""

PACKAGES = ("algorithms", "platform", "searchspaces", "cluster", "reports")


@dataclass(frozen=True)
class Submission:
    """A validated command for a cluster."""

    arguments: list[str]
    ships: bool
    """Whether this version of Hedgerow is uploaded; otherwise the version installed on the cluster is used."""

    @property
    def entrypoint(self) -> str:
        return shlex.join(["python", "-m", "hedgerow", *self.arguments])

    def runtime_env(self, given: dict[str, Any], stage: Path) -> dict[str, Any]:
        """Build Ray's runtime environment from `given` and the uploaded code. stage: an empty folder."""
        environment: dict[str, Any] = {
            **given,
            "working_dir": str(Path.cwd()),
            "excludes": [*given.get("excludes", []), *LEFT_HERE],
            "env_vars": {COMMIT: git_commit() or "", **given.get("env_vars", {})},
        }
        if self.ships:
            environment["env_vars"].setdefault(SOURCE, source_commit() or "")
            environment["py_modules"] = [*given.get("py_modules", []), *map(str, stage_package(stage))]
        return environment


def check_size(folder: Path, given: dict[str, Any]) -> None:
    """Raises UserError with the largest files if a working directory is too large to be uploaded.

    given: the user's part of the runtime environment.
    """
    excludes = GitIgnoreSpec.from_lines([*given.get("excludes", []), *LEFT_HERE])
    sizes = {file: file.stat().st_size for file in _uploaded(folder, [(folder, excludes)])}
    if (total := sum(sizes.values())) >= MOST:
        largest = sorted(sizes, key=lambda file: -sizes[file])[:3]
        names = ", ".join(f"{file.relative_to(folder)} ({sizes[file] / 1e6:.0f} MB)" for file in largest)
        raise UserError(
            f"submit: {total / 1e6:.0f} MB of the working directory would be uploaded, and Ray takes up to "
            f"{MOST / 1e6:.0f}; the largest files are {names}: name what the job does not need in .rayignore, as in "
            ".gitignore, and keep data on a disk that all nodes share"
        )


def _uploaded(folder: Path, specs: list[tuple[Path, GitIgnoreSpec]]) -> Iterator[Path]:
    """Files of a folder that Ray uploads: none that a file .gitignore or .rayignore here or above names."""
    ignoring = [folder / name for name in (".gitignore", ".rayignore")]
    try:
        texts = [file.read_text(encoding="utf-8") for file in ignoring if file.is_file()]
        entries = sorted(folder.iterdir())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"submit: {folder} cannot be read for the upload ({one_line(error)})") from None
    specs = [*specs, *((folder, GitIgnoreSpec.from_lines(text.splitlines())) for text in texts)]
    for path in entries:
        # Ray follows links, too.
        is_folder = path.is_dir()
        if any(spec.match_file(f"{path.relative_to(home)}{'/' * is_folder}") for home, spec in specs):
            continue
        if is_folder:
            yield from _uploaded(path, specs)
        elif path.is_file():
            yield path


def stage_package(stage: Path) -> list[Path]:
    """Copy the package and its version metadata into `stage`; returns the two folders, which a job can import."""
    root, code = Path(hedgerow.__file__).parent, stage / "hedgerow"
    code.mkdir()
    for file in [*root.glob("*.py"), *root.glob("*.pyi")]:
        shutil.copy2(file, code)
    for package in PACKAGES:
        shutil.copytree(root / package, code / package, ignore=shutil.ignore_patterns("__pycache__"))
    number = version("hedgerow")
    metadata = stage / f"hedgerow-{number}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: hedgerow\nVersion: {number}\n")
    return [code, metadata]


def check_command(arguments: Sequence[str], group: click.Group, ships: bool) -> Submission:
    """Check a command as far as possible without the cluster's data. group: the `hedgerow` command.

    Raises UserError if the cluster would refuse the command, or if its results would be deleted with the job.
    """
    name, *rest = arguments
    command = group.commands.get(name)
    if name not in COMMANDS or command is None:
        raise UserError(f"submit: {name!r} cannot be submitted; write one of {', '.join(COMMANDS)} and its arguments")
    try:
        args = command.make_context(name, list(rest), parent=click.Context(group, **group.context_settings)).params
    except click.UsageError as error:
        raise UserError(f"submit {name}: {error.format_message()}") from None
    if name == "resume":
        if not is_uri(args["run"]):
            _check_output("RUN", Path(args["run"]))
    elif name == "table":
        if "/" not in args["name"] or args["show"] or args["report"]:
            raise UserError("submit table: give the name of a table to run, such as feddyn/T2.3")
        # The command itself shows what it would run.
        assert command.callback is not None
        shown = unwrap(command.callback)(**{key: args[key] for key in args if key != "as_json"} | {"show": True})
        for file in shown.document["files"]:
            _check_output("--output", Path(file["output"]))
    else:
        for file in args.get("files") or [args["file"]]:
            _check_file(name, file, args["overrides"])
    return Submission(list(arguments), ships)


def _check_file(command: str, file: Path, overrides: Sequence[str]) -> None:
    if file.is_absolute() or ".." in file.parts:
        raise UserError(f"{file}: only the current folder is uploaded; give the relative path of a file in it")
    experiment = load_search(file, overrides).experiment if command == "search" else load_experiment(file, overrides)
    if command != "plan":
        _check_output(f"{file}: output", Path(experiment.output))


def _check_output(what: str, folder: Path) -> None:
    """Raises UserError for a relative path, since it would be inside the job's own folder, which Ray deletes."""
    if not folder.is_absolute():
        option = {"--output": "--output /shared/runs", "RUN": "/shared/runs/NAME"}.get(
            what, "--set output=/shared/runs"
        )
        raise UserError(
            f"{what}: {str(folder)!r} would be inside the job's own folder, which Ray deletes after the job; give an "
            f"absolute path that all nodes share: {option}"
        )


def read_runtime_env(file: Path | None) -> dict[str, Any]:
    """Read Ray's runtime environment from a YAML file. Raises UserError."""
    if file is None:
        return {}
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--runtime-env {file}: cannot be read: {one_line(error)}") from None
    values, _ = parse_yaml(text, lambda line: f"--runtime-env {file}:{line}")
    if not isinstance(values, dict):
        raise UserError(f"--runtime-env {file}: write `key: value` lines, as Ray's documentation of runtime_env does")
    if "working_dir" in values:
        raise UserError(f"--runtime-env {file}: working_dir is always the current folder; remove the key")
    return values
