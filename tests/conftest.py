"""Shared fixtures: one cache and one Ray for the whole session of a process."""

import gc
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from zlib import crc32

import hypothesis
import pytest
import torch

# Set before any import that reads it, and inherited by every process that a test starts.
os.environ.setdefault("HEDGEROW_CACHE", tempfile.mkdtemp(prefix="hedgerow-test-cache-"))
# Ray's workers have low priority by default, so the computations of another test process could starve them.
os.environ.setdefault("RAY_worker_niceness", "0")
torch.set_num_threads(1)
# The same examples each time, on a machine of any speed.
SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("tests", derandomize=True, deadline=None, suppress_health_check=SLOW)
hypothesis.settings.load_profile("tests")
# The modules of all tests create millions of lasting objects: collections skip them (see pytest_collection_finish).
gc.disable()


KINDS = {
    "grid": "a case of a grid; `make test` covers every value of its parameters with other cases",
    "convergence": "many rounds, seeds or cohorts; `make test` checks the same claim with fewer, or in closed form",
    "kills": "a process is killed or frozen; `make test` has a few such recoveries, not each of them",
    "browser": "a page in a real browser; `make test` reads its text without one",
    "compiler": "code that a C++ compiler compiles first",
    "processes": "separate commands and Ray instances; `make test` starts one of each kind",
}
"""Kinds of `exhaustive` tests, which `make test` skips and `make test-all` runs."""
BY_FIXTURE = {"browser": "browser", "executed": "processes", "nodes": "processes", "site": "processes"}
"""Fixtures whose tests are exhaustive: Chromium, a notebook's kernel, raylets as the nodes of a cluster, the site."""


def pytest_addoption(parser):
    parser.addoption("--part", default="1/1", help="run one part of the tests only, such as 2/3")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Divide grids: `make test` runs just enough cases that every value of every parameter occurs."""
    grids = defaultdict(list)
    for item in items:
        for fixture in BY_FIXTURE.keys() & set(item.fixturenames):
            item.add_marker(pytest.mark.exhaustive(BY_FIXTURE[fixture]))
        for mark in item.iter_markers("exhaustive"):
            if len(mark.args) != 1 or mark.args[0] not in KINDS:
                raise pytest.UsageError(f"{item.nodeid}: exhaustive needs exactly one of {', '.join(KINDS)}")
        if item.get_closest_marker("grid"):
            grids[item.nodeid.partition("[")[0]].append(item)
    for cases in grids.values():
        mark = cases[0].get_closest_marker("grid")
        for item in rest_of_grid(cases, mark.args, **mark.kwargs):
            item.add_marker(pytest.mark.exhaustive("grid"))
    part, parts = map(int, config.getoption("--part").split("/"))
    chosen = [item for item in items if crc32(item.nodeid.encode()) % parts == part - 1]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
    items[:] = chosen


def pytest_collection_finish():
    """Collect garbage from here on, without looking at the modules again and again."""
    gc.freeze()
    gc.enable()


def rest_of_grid(cases, parameters, keep=None):
    """Cases that `make test` skips. parameters: those whose values must occur (default: all). keep: number to run."""
    if keep is not None:
        return cases[keep:]
    values = {}
    for case in cases:
        params = case.callspec.params
        values[case] = {(name, repr(params[name])) for name in parameters or params}
    rest, missing = list(cases), set().union(*values.values())
    while missing:
        best = max(rest, key=lambda case: len(values[case] & missing))
        rest.remove(best)
        missing -= values[best]
    return rest


@pytest.fixture(scope="session")
def ray_here():
    """Ray, started once as a run starts it, but with four CPUs on any machine."""
    import ray

    from hedgerow.platform.actors.session import local_ray

    with local_ray(reachable=True, num_cpus=4):
        yield ray


@pytest.fixture(scope="module")
def kept(ray_here):
    """Lets the runs of a module share processes, as the runs of one command do."""
    from hedgerow.platform.actors.ray_coordinator import keep_warm, shutdown_idle

    with keep_warm():
        yield
    shutdown_idle()


@pytest.fixture(scope="module")
def browser():
    """The system's Chromium without a window, driven by Playwright; tests that need it are skipped if it is missing.

    One per module: while it is open, an event loop runs in this thread, and no other loop can be started.
    """
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if executable is None:
        pytest.skip("there is no Chromium on this machine (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium has no sandbox for root.
        chromium = playwright.chromium.launch(
            executable_path=executable, chromium_sandbox=os.geteuid() != 0, timeout=200_000
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="module", autouse=True)
def unreserved():
    """Every module starts with all CPUs of the session's Ray."""
    if "ray" in sys.modules:
        from reservations import free_reservations

        free_reservations()


@pytest.fixture
def every_cpu(ray_here):
    """All CPUs of Ray, also after a test of the same module that failed."""
    from reservations import free_reservations

    free_reservations()
    return ray_here
