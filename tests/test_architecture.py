"""Architecture rules: imports point one way, names of modules and classes are unique, and folders stay small."""

import ast
from collections import Counter, defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from paths import ROOT

PACKAGES = ("algorithms", "platform", "searchspaces", "cluster", "reports")
LAYERS = [
    ["hedgerow"],
    ["algorithms/core"],
    [
        "algorithms/measures",
        "algorithms/optim",
        "algorithms/nn",
        "algorithms/problems",
        "algorithms/transforms",
        "algorithms/aggregators",
    ],
    ["algorithms/attacks"],
    ["algorithms/objectives", "algorithms/bilevel", "algorithms/heterogeneous", "algorithms/compressed"],
    ["algorithms/slots"],
    ["algorithms/federated"],
    ["algorithms/personalized", "algorithms/noisy_labels", "algorithms/distillation"],
    ["algorithms/online"],
    ["algorithms"],
    ["platform/common"],
    ["platform/storage", "platform/models", "platform/data", "platform/loggers", "platform/privacy"],
    ["platform/data/sources", "platform/data/partitions"],
    ["platform/config"],
    ["platform/tracking", "platform/schedules"],
    ["platform/runtime"],
    ["platform/ui"],
    ["platform/actors"],
    ["platform/runs"],
    ["searchspaces/spaces"],
    ["searchspaces/hedge"],
    ["searchspaces/results"],
    ["searchspaces/tune/kinds"],
    ["searchspaces/tune"],
    ["searchspaces/extra"],
    ["searchspaces/extra/papers"],
    ["searchspaces"],
    ["cluster", "reports/sections"],
    ["reports/page"],
    ["reports"],
    ["."],
]
"""Folders from the lowest to the highest layer. A folder imports only folders of lower layers.

`hedgerow` is the package itself, which names its public objects as strings; `.` means the other modules of the root.
"""
RANK = {folder: rank for rank, folders in enumerate(LAYERS) for folder in folders}
TEMPLATES = "platform/ui/templates"  # written by `hedgerow new`: user code
LARGEST_FOLDER = 20
ONLY_IN = {
    "ray": ("platform/actors/", "platform/common/ray_private.py", "searchspaces/", "cluster/"),
    "mlflow": ("platform/tracking/mlflow_store.py", "searchspaces/results/mlflow_search.py"),
}
"""Imported library -> allowed places. platform/common/ray_private.py imports Ray only inside functions."""


def modules() -> dict[str, Path]:
    """Every module of the package, by its dotted name."""
    files = [*ROOT.glob("*.py"), *(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))]
    parts = {file: ("hedgerow", *file.relative_to(ROOT).with_suffix("").parts) for file in files}
    named = {".".join(name[:-1] if name[-1] == "__init__" else name): file for file, name in parts.items()}
    return {name: file for name, file in named.items() if TEMPLATES not in file.as_posix()}


MODULES = modules()
PUBLIC = {
    alias.name: str(node.module)
    for node in ast.parse((ROOT / "__init__.pyi").read_text()).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
"""Public name -> module that defines it."""


def folder_of(module: str) -> str:
    file = MODULES[module].relative_to(ROOT)
    if module == "hedgerow":
        return module
    return file.parent.as_posix()


@cache
def imports(module: str, everywhere: bool) -> frozenset[str]:
    """Modules of the package that a module imports. everywhere: also in functions and for type checkers."""
    targets = set()
    for node in nodes(ast.parse(MODULES[module].read_text()), everywhere):
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            if node.module == "hedgerow":
                targets |= {PUBLIC.get(alias.name, "hedgerow") for alias in node.names}
                continue
            # A name of a package is a module of it, or an object in its __init__.
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            targets |= names & MODULES.keys() or {str(node.module)}
    return frozenset(targets & MODULES.keys() - {module})


def nodes(tree: ast.AST, everywhere: bool):
    for node in ast.iter_child_nodes(tree):
        if not everywhere:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                continue
        yield node
        yield from nodes(node, everywhere)


def libraries(module: str) -> set[str]:
    """Top-level packages that a module imports, anywhere in its code."""
    packages = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            packages.add(str(node.module).partition(".")[0])
    return packages


def test_imports_point_from_higher_folders_to_lower_ones():
    assert {folder_of(module) for module in MODULES} <= RANK.keys(), "add new folders to LAYERS"
    upward = [
        f"{module} imports {other}"
        for module in MODULES
        for other in imports(module, everywhere=True)
        if (here := folder_of(module)) != (there := folder_of(other)) and RANK[there] >= RANK[here]
    ]
    assert not upward, "\n".join(sorted(upward))


def test_only_the_command_line_imports_what_is_outside_the_core_and_only_in_its_commands():
    def extra(names):
        return {name for name in names if name.startswith("hedgerow.searchspaces.extra")}

    inside = extra(MODULES)
    assert {module for module in MODULES.keys() - inside if extra(imports(module, True))} == {"hedgerow.cli"}
    assert not extra(imports("hedgerow.cli", everywhere=False))
    lines = sum(len(MODULES[module].read_text().splitlines()) for module in inside)
    assert lines <= 1600


@pytest.mark.parametrize("command", ["run", "search", "resume"])
def test_a_command_that_trains_imports_neither_reports_nor_published_tables(command):
    (body,) = (
        node for node in ast.parse(MODULES["hedgerow.cli"].read_text()).body if getattr(node, "name", "") == command
    )
    new = {str(node.module) for node in ast.walk(body) if isinstance(node, ast.ImportFrom)}
    reached: set[str] = set()
    while new:
        reached |= new
        new = {other for module in new for other in imports(module, everywhere=True)} - reached
    assert "hedgerow.platform.runs.run_session" in reached
    assert not {one for one in reached if one.startswith(("hedgerow.reports", "hedgerow.searchspaces.extra"))}


@pytest.mark.parametrize("everywhere", [False, True], ids=["at_import_time", "functions_and_types_too"])
def test_no_modules_import_each_other_in_a_circle(everywhere):
    try:
        TopologicalSorter({module: imports(module, everywhere) for module in MODULES}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_the_name_of_a_module_and_that_of_a_class_occur_once():
    files = Counter(file.stem for file in MODULES.values() if not file.stem.startswith("__"))
    assert [name for name, count in files.items() if count > 1] == []
    # Nested classes, such as the `Hyper` of every algorithm, are identified by their owner.
    homes = defaultdict(list)
    for module, file in MODULES.items():
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(module)
    duplicates = [f"{name}: {', '.join(places)}" for name, places in sorted(homes.items()) if len(places) > 1]
    assert not duplicates, "\n".join(duplicates)


def test_no_folder_has_too_many_modules():
    sizes = Counter(file.parent.relative_to(ROOT).as_posix() for file in MODULES.values() if file.stem != "__init__")
    assert {folder: size for folder, size in sizes.items() if size > LARGEST_FOLDER} == {}


def test_algorithms_know_nothing_of_the_platform_and_libraries_stay_where_they_belong():
    for module, file in MODULES.items():
        used, place = libraries(module), file.relative_to(ROOT).as_posix()
        for library, allowed in ONLY_IN.items():
            if folder_of(module) != "platform/actors":
                assert library not in used or place.startswith(allowed), f"{module} imports {library}"
        if place.startswith("algorithms/"):
            assert all(one.startswith("hedgerow.algorithms") for one in imports(module, everywhere=True)), module


def test_platform_is_no_package_that_shadows_the_standard_library_s_module():
    assert not (ROOT / "platform" / "__init__.py").exists()
    assert not list((ROOT / "tests").rglob("platform"))


def test_every_fault_of_the_list_is_an_edit_of_one_place(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests")
    from faults import FAULTS

    for fault in FAULTS:
        assert (ROOT / fault.file).read_text().count(fault.before) == 1, fault.promise
        assert (ROOT / fault.near.partition("::")[0]).exists(), fault.near
