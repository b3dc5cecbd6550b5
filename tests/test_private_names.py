"""The package uses private names of torch and Ray in one module each, and refuses versions without them."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import ray
import torch
from paths import ROOT

from hedgerow.algorithms.core import torch_private
from hedgerow.algorithms.optim import gradient
from hedgerow.platform.common import ray_private
from hedgerow.platform.common.errors import UserError

HOMES = {"algorithms/core/torch_private.py", "platform/common/ray_private.py", "tests/support/internals.py"}


def private_names(file: Path) -> list[str]:
    """Dotted names of torch and Ray with a private part that a file imports or reads."""
    names = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            # What follows a private part belongs to another node.
            names.append(ast.unparse(node))
    return [
        name
        for name in names
        if name.split(".")[0] in ("torch", "ray")
        and any(part.startswith("_") and not part.startswith("__") for part in name.split("."))
    ]


def test_only_these_modules_use_private_names():
    listing = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = set(listing.stdout.split()) - HOMES
    assert {name: private for name in sorted(files) if (private := private_names(ROOT / name))} == {}
    assert all(private_names(ROOT / name) for name in HOMES)


def test_the_module_for_ray_imports_no_ray():
    program = "import sys, hedgerow.platform.common.ray_private; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_gradients_are_the_same_without_levels(monkeypatch):
    def loss(w, x):
        return ((w["a"] * x).sin().sum() + w["b"].square().sum(), {"x": x.sum()})

    w = {"a": torch.randn(3, generator=torch.manual_seed(0)), "b": torch.ones(2)}
    x = torch.linspace(0, 1, 3)
    both = [gradient.gradient_and_value(loss, aux=True)(w, x)]
    monkeypatch.setattr(gradient, "HAS_GRADIENT_LEVELS", False)
    both.append(gradient.gradient_and_value(loss, aux=True)(w, x))
    for mine, other in zip(*([*g.values(), value, more["x"]] for g, value, more in both), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize(
    ("name", "others"),
    [("add_", [[0.5, 2.0]]), ("mul_", [0.3]), ("lerp_", [[0.5, 2.0], 0.1]), ("norm", [])],
)
def test_operations_on_lists_are_the_same_one_by_one(name, others):
    def tensors() -> list[torch.Tensor]:
        random = torch.manual_seed(0)
        return [torch.randn(3, 5, generator=random), torch.randn(7, generator=random)]

    def arguments() -> list:
        return [
            [torch.full_like(t, v) for t, v in zip(tensors(), one, strict=True)] if isinstance(one, list) else one
            for one in others
        ]

    mine, other = tensors(), tensors()
    results = (
        getattr(torch_private, f"foreach_{name}")(mine, *arguments()),
        torch_private._each(name, other, *arguments()),
    )
    if name == "norm":
        mine, other = results
    assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))


def test_whether_code_is_transformed(monkeypatch):
    flags = []

    def look(x):
        flags.append(torch_private.is_transformed())
        return x

    look(torch.ones(2))
    torch.func.vmap(look)(torch.ones(2))
    monkeypatch.setattr(torch_private, "_peek_interpreter_stack", None)
    look(torch.ones(2))
    assert flags == [False, True, True]


def test_the_versions_of_ray_are_those_of_the_package():
    allowed = f">={ray_private.LEAST},<{ray_private.UNTESTED}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["cluster"]]
    assert {need.partition("]")[2] for need in needed if need.startswith("ray[")} == {allowed}
    assert f"ray=={ray_private.TRIED}" in (ROOT / "constraints.txt").read_text().split()
    # The bound is the next minor version after the one that the tests run with.
    assert ray.__version__ == ray_private.TRIED
    major, minor, _ = ray_private.TRIED.split(".")
    assert f"{major}.{int(minor) + 1}" == ray_private.UNTESTED
    ray_private.check_version()


@pytest.mark.parametrize("version", ["2.54.1", "2.61.0", "3.0.0.dev0"])
def test_other_versions_of_ray_are_refused(version, monkeypatch):
    monkeypatch.setattr(ray, "__version__", version)
    with pytest.raises(UserError, match=f"^Ray {version} is installed, but .* install ray.tune.==2.60.0$"):
        ray_private.check_version()
