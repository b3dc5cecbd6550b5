"""The documentation is true: every block of it is run, page by page, or at least read where it needs more."""

import re
import shlex
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from fences import Block, blocks
from paths import ROOT

from hedgerow.algorithms import ALGORITHMS
from hedgerow.cli import main
from hedgerow.platform.config.loader import load_experiment, parse_experiment
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.searchspaces.spaces.search_file import load_search
from hedgerow.searchspaces.spaces.search_section import Dimension

KEY = re.compile(r"\[([A-Z][A-Za-z]+\d{4}[a-z]?)[\],]")
"""Key of a source."""

ROOT_PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
PAGES = [page for page in [*ROOT_PAGES, *sorted((ROOT / "docs").rglob("*.md"))] if blocks(page)]

SMALL = {
    "run": ["--set", "rounds=2", "--set", "tracking.enabled=false", "--set", "resources.executor=inline"],
    "search": ["--set", "rounds=2", "--set", "tracking.enabled=false", "--set", "search.concurrency=1"],
}
"""What is added to a command, so that it takes seconds."""

BASE = yaml.safe_load((ROOT / "examples" / "digits_fedavg.yaml").read_text())
"""What a part of an experiment file is a part of, where no example is named."""


class Reader:
    """Who follows a page: saves the files that it shows, and does what it says, in one folder and one process."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.names: dict[str, Any] = {}
        (folder / "examples").symlink_to(ROOT / "examples")

    def follow(self, block: Block) -> None:
        do: dict[str, Callable[[Block], None]] = {"bash": self.bash, "python": self.python, "yaml": self.yaml}
        if block.language != "text":
            do[block.language](block)

    def bash(self, block: Block) -> None:
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] == "hedgerow":
                understand(words[1:])
                if not block.needs:
                    given = [one for word in words[1:] for one in self.spelled_out(word)]
                    done = CliRunner().invoke(main, [*given, *SMALL.get(words[1], [])])
                    assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception!r}"
            elif words and words[0] == "make":
                assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text(), line
            else:
                assert block.needs or not words, f"no test runs {line!r}"

    def spelled_out(self, word: str) -> list[str]:
        """What a shell makes of a word."""
        return sorted(map(str, self.folder.glob(word))) if "*" in word else [word]

    def python(self, block: Block) -> None:
        if block.file:
            (self.folder / block.file).write_text(block.text)
        code = compile(block.text, block.file or f"line {block.line}", "exec")
        if not block.needs:
            exec(code, {"__name__": "page"} if block.file else self.names)

    def yaml(self, block: Block) -> None:
        values, example = yaml.safe_load(block.text), re.match(r"# (examples/\w+\.yaml)(, in part)?", block.text)
        if block.file:
            (self.folder / block.file).write_text(block.text)
            (load_search if "search" in values else load_experiment)(block.file)
        elif block.title == "search.space":
            for entry in values.values():
                Dimension.model_validate(entry, strict=True)
        elif example:
            whole = yaml.safe_load(Path(example[1]).read_text())
            assert within(values, whole) if example[2] else values == whole
        elif block.title == "search":
            (self.folder / "section.yaml").write_text(yaml.safe_dump({**BASE, **values}))
            load_search("section.yaml")
        else:
            parse_experiment({**BASE, **values})


def within(part: Any, whole: Any) -> bool:
    """Whether a file has all that a part of it shows."""
    if not isinstance(part, dict):
        return part == whole
    return all(key in whole and within(value, whole[key]) for key, value in part.items())


def understand(words: list[str], family: click.Group = main) -> None:
    """The command and its options exist, and take what they are given. Raises click's own error."""
    command = family.commands[words[0]]
    if isinstance(command, click.Group):
        if words[1:]:
            understand(words[1:], command)
        return
    # As the family calls it: a command keeps the names of its help from its first call on.
    context = command.make_context(words[0], words[1:], parent=click.Context(family, **main.context_settings))
    if words[0] == "submit":
        understand(list(context.params["command"]))


def searches(page: Path) -> bool:
    return (
        any(word in page.read_text() for word in ("search(", "tune.Tuner(")) or "\nhedgerow search " in page.read_text()
    )


@pytest.mark.exhaustive("processes")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_of_a_page_runs(page, tmp_path, monkeypatch, request):
    if searches(page):
        request.getfixturevalue("ray_here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # Another page or test may have a module of the same name.
    own = [block.file.removesuffix(".py") for block in blocks(page) if block.file.endswith(".py")]
    for name in own:
        sys.modules.pop(name, None)
    reader = Reader(tmp_path)
    for block in blocks(page):
        try:
            reader.follow(block)
        except BaseException as error:
            error.add_note(f"{page.relative_to(ROOT)}:{block.line}")
            raise
    for name in own:
        sys.modules.pop(name, None)


OWN = {
    "tutorials/own-algorithm.md": ["my_algorithm.py"],
    "how-to/slots.md": ["my_rule.py", "my_transform.py"],
    "how-to/own-objective.md": ["logit_penalty.py"],
    "how-to/own-data.md": ["my_data.py", "my_partition.py"],
    "how-to/own-loop.md": ["two_models.py"],
    "how-to/own-loss.md": ["demand.py", "ranked.py"],
    "how-to/loggers.md": ["stop_at.py", "smoothed.py"],
    "how-to/own-search.md": ["my_search.py"],
}
"""Page -> files that it shows for code of one's own; the test of its blocks runs them."""


def test_code_of_ones_own_is_a_short_file_that_imports_from_the_root_alone():
    for page, names in OWN.items():
        shown = {block.file: block.text for block in blocks(ROOT / "docs" / page)}
        assert all(len(shown[name].splitlines()) <= 25 for name in names), page


def test_examples_import_from_the_root_alone():
    deep = re.compile(r"^(?:from|import) hedgerow\.", re.MULTILINE)
    shown = {page: "\n".join(block.text for block in blocks(page)) for page in PAGES}
    shown |= {file: file.read_text() for file in (ROOT / "examples").glob("*.py")}
    shown |= {file: file.read_text() for file in (ROOT / "platform" / "ui" / "templates").glob("*.py")}
    shown |= {file: file.read_text() for file in (ROOT / "examples").glob("*.ipynb")}
    assert not [page for page, text in shown.items() if deep.search(text)]


def test_every_fence_says_what_is_in_it():
    for page in PAGES:
        assert page.read_text().count("\n```") + page.read_text().startswith("```") == 2 * len(blocks(page)), page


def test_every_command_in_the_text_is_one():
    told = 0
    for page in [*(ROOT / "docs").rglob("*.md"), *ROOT_PAGES, ROOT / "benchmarks" / "README.md"]:
        for found in re.findall(r"`hedgerow ([^`]+)`", page.read_text()):
            words = shlex.split(found.replace("...", "").replace("KIND", "algorithms").replace("\n", " "))
            if words[0] in ("--help", "COMMAND", "run|search|submit"):
                continue
            told += 1
            named, rest = main.commands[words[0]], words[1:]
            while isinstance(named, click.Group) and rest:
                named, rest = named.commands[rest[0]], rest[1:]
            # Where no argument is given the command is only named.
            if rest or not named.params:
                understand(words)
    assert told > 30


def test_the_examples_of_the_help_are_understood():
    for name, command in main.commands.items():
        _, _, example = (command.help or "").partition("Example: hedgerow ")
        if example:
            assert shlex.split(example)[0] == name
            understand(shlex.split(example))


def test_every_extra_of_the_package_is_documented():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "tutorials" / "first-run.md").read_text()
    assert all(f"`{extra}`" in page for extra in extras)


def test_every_key_of_a_source_is_in_the_references():
    references = (ROOT / "docs" / "references.md").read_text()
    files = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "algorithms").rglob("*.py"), *(ROOT / "platform").rglob("*.py")]
    files += [*(ROOT / "searchspaces").rglob("*.py"), ROOT / "benchmarks" / "README.md"]
    for file in files:
        for key in KEY.findall(file.read_text()):
            assert f"| [{key}] |" in references, f"{file.relative_to(ROOT)}: {key}"


def test_every_algorithm_names_its_source_by_a_key():
    references = (ROOT / "docs" / "references.md").read_text()
    for name in ALGORITHMS:
        keys = KEY.findall(vars(algorithm_class(name))["__doc__"])
        assert keys, name
        assert all(f"| [{key}] |" in references for key in keys), name


def test_every_link_of_the_pages_in_the_root_leads_to_a_file():
    for page in ROOT_PAGES:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", page.read_text()):
            assert (ROOT / link).exists(), f"{page.name}: {link}"


def test_every_test_that_is_named_is_there():
    named = 0
    for page in [*(ROOT / "docs").rglob("*.md"), *ROOT_PAGES, ROOT / "benchmarks" / "README.md"]:
        for file in re.findall(r"[\w/]*\btest_\w+\.py", page.read_text()):
            named += 1
            assert (ROOT / file).is_file(), f"{page.relative_to(ROOT)}: {file}"
    assert named > 60
