"""The commands `list`, `show` and `new` answer from the user's cache, which is never out of date."""

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import GOOD, hedgerow
from damaged_files import DAMAGES, flipped

from hedgerow.platform.common import user_cache
from hedgerow.platform.common.user_cache import cached_answer, read_entry, write_entry
from hedgerow.platform.ui.explained_experiment import commented, complete

PROGRAM = """\
import sys
from hedgerow.cli import main
main(sys.argv[1:], standalone_mode=False)
loaded = {"torch", "ray", "mlflow", "pandas", "numpy"} & set(sys.modules)
assert not loaded, loaded
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("good.yaml").write_text(GOOD)
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [("list", "algorithms"), ("list", "spaces", "--json"), ("show", "good.yaml", "--set", "algorithm.lr=0.2")],
    ids=" ".join,
)
def test_a_cached_answer_is_the_same_without_heavy_imports(here, command):
    first = hedgerow(*command)
    assert first.exit_code == 0, first.output
    again = subprocess.run([sys.executable, "-c", PROGRAM, *command], capture_output=True, text=True, check=False)
    assert (again.returncode, again.stdout) == (0, first.stdout), again.stderr


def test_new_experiments_differ_only_in_their_name(here):
    assert hedgerow("new", "experiment", "first").exit_code == 0
    for name in ("second", "no", "a-name-that-is-longer-than-the-column-of-comments"):
        subprocess.run([sys.executable, "-c", PROGRAM, "new", "experiment", name], check=True)
        text = Path(f"{name}.yaml").read_text()
        assert text.endswith("\n\n" + commented(complete(name, "fedavg"), every=False))
        assert f"hedgerow run {name}.yaml" in text


def test_a_changed_package_or_state_invalidates_the_cache(here, monkeypatch):
    package = here / "package"
    (package / "inner").mkdir(parents=True)
    module = package / "inner" / "module.py"
    module.write_text("a = 1")
    monkeypatch.setattr(user_cache, "PACKAGE", package)
    answers = iter(range(1, 10))

    def ask(state=""):
        return cached_answer(("question",), lambda: next(answers), state)

    assert (ask(), ask()) == (1, 1)
    module.write_text("a = 10")
    assert (ask(), ask()) == (2, 2)
    module.with_name("new.py").touch()
    assert (ask(), ask()) == (3, 3)
    assert (ask("a"), ask("a"), ask("b")) == (4, 4, 5)
    for file in (here / "cache" / "answers").iterdir():
        file.write_text("{damaged")
    assert (ask("b"), ask("b")) == (6, 6)


@pytest.mark.parametrize("damage", [*DAMAGES, "flip"])
def test_a_damaged_entry_is_never_believed(here, damage):
    file = here / "folder" / "entry.json"
    for value in ({"chunk": 16, "mode": "vmap"}, False, [1.5, None, "ä"]):
        write_entry(file, value)
        # The first of two processes decides.
        write_entry(file, "another")
        assert read_entry(file) == value
        assert [entry.name for entry in file.parent.iterdir()] == ["entry.json"]
        sound = file.read_bytes()
        for bit in range(8 * len(sound)) if damage == "flip" else [0]:
            file.write_bytes(sound)
            if damage == "flip":
                file.write_bytes(flipped(sound, bit))
            else:
                DAMAGES[damage](file)
            assert read_entry(file) is None
            assert not file.exists()


def test_an_answer_is_computed_where_the_cache_cannot_be_written(here):
    (here / "cache").write_text("a file")
    assert [cached_answer(("question",), lambda: 1) for _ in range(2)] == [1, 1]


def shown(*arguments, **env):
    result = hedgerow("show", "own.yaml", *arguments, **env)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_shown_file_follows_what_it_refers_to(here):
    own, base = Path("own.yaml"), Path("good.yaml")
    own.write_text(GOOD)
    assert "rounds: 3 " in shown()
    own.write_text(GOOD.replace("rounds: 3", "rounds: 4"))
    assert "rounds: 4 " in shown()
    assert "rounds: 5 " in shown("--set", "rounds=${env:ROUNDS}", ROUNDS="5")
    assert "rounds: 6 " in shown("--set", "rounds=${env:ROUNDS}", ROUNDS="6")
    own.write_text("base: good.yaml")
    assert "rounds: 3 " in shown()
    base.write_text(GOOD.replace("rounds: 3", "rounds: 7"))
    assert "rounds: 7 " in shown()
    own.write_text(GOOD.replace("mlp, hidden: [20]", "own_nets.Net"))
    net = "import torch\nclass Net(torch.nn.Sequential):\n    def __init__(self):\n        super().__init__(%s)\n"
    Path("own_nets.py").write_text(net % "torch.nn.Flatten(), torch.nn.Linear(64, 10)")
    assert "own_nets.Net" in shown()
    Path("own_nets.py").unlink()
    sys.modules.pop("own_nets", None)
    # The answer to an own class is not stored: without its module, the command cannot say what it was.
    stored = [file.read_text() for file in (here / "cache" / "answers").iterdir()]
    assert not any("own_nets" in text for text in stored)
