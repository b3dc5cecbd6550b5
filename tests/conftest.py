"""One cache and one Ray for the whole session of a process."""

import os
import shutil
import tempfile
from collections import defaultdict

import pytest
import torch

# Set before anything is imported that reads it, and inherited by every process that a test starts.
os.environ.setdefault("HEDGEROW_CACHE", tempfile.mkdtemp(prefix="hedgerow-test-cache-"))
torch.set_num_threads(1)


KINDS = {
    "grid": "a case of a grid whose parameters have every value in other cases of `make test`",
    "convergence": "many rounds, seeds or cohorts; `make test` has the same promise over fewer, or in closed form",
    "kills": "a process is killed or frozen; `make test` has another moment or another process of the same recovery",
    "browser": "a page in a real browser, whose text `make test` reads without one",
    "compiler": "code that a C++ compiler translates first",
    "processes": "commands and Rays of their own, of which `make test` starts one of each sort",
}
"""Kinds of `exhaustive` tests, which `make test` leaves to `make test-all`."""
BY_FIXTURE = {"browser": "browser", "executed": "processes", "nodes": "processes"}
"""Fixtures whose tests are of such a kind: Chromium, a notebook's kernel, and raylets as the nodes of a cluster."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Divide grids: `make test` runs so many cases that every value of every parameter occurs."""
    grids = defaultdict(list)
    for item in items:
        for fixture in BY_FIXTURE.keys() & set(item.fixturenames):
            item.add_marker(pytest.mark.exhaustive(BY_FIXTURE[fixture]))
        for mark in item.iter_markers("exhaustive"):
            if len(mark.args) != 1 or mark.args[0] not in KINDS:
                raise pytest.UsageError(f"{item.nodeid}: exhaustive needs one of {', '.join(KINDS)}")
        if item.get_closest_marker("grid"):
            grids[item.nodeid.partition("[")[0]].append(item)
    for cases in grids.values():
        mark = cases[0].get_closest_marker("grid")
        for item in rest_of_grid(cases, mark.args, **mark.kwargs):
            item.add_marker(pytest.mark.exhaustive("grid"))


def rest_of_grid(cases, parameters, keep=None):
    """The cases that `make test` leaves out. parameters: those whose values must occur (all); keep: how many to run."""
    if keep is not None:
        return cases[keep:]
    values = {}
    for case in cases:
        given = case.callspec.params
        values[case] = {(name, repr(given[name])) for name in parameters or given}
    rest, missing = list(cases), set().union(*values.values())
    while missing:
        best = max(rest, key=lambda case: len(values[case] & missing))
        rest.remove(best)
        missing -= values[best]
    return rest


@pytest.fixture(scope="session")
def ray_here():
    """Ray, started once, as a run starts it: but four CPUs, whatever the machine has."""
    import ray

    from hedgerow.platform.actors.session import local_ray

    with local_ray(reachable=True, num_cpus=4):
        yield ray


@pytest.fixture(scope="module")
def kept(ray_here):
    """Runs of a module share processes, as those of one command do."""
    from hedgerow.platform.actors.actor_pool import keep_warm, shutdown_idle

    with keep_warm():
        yield
    shutdown_idle()


@pytest.fixture(scope="module")
def browser():
    """The system's Chromium without a window, driven by Playwright; a test that wants it is skipped where it is absent.

    One per module: as long as it is open, an event loop runs in this thread, which others could not start.
    """
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("there is no Chromium on this machine (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium has no sandbox for root.
        chromium = playwright.chromium.launch(
            executable_path=found, chromium_sandbox=os.geteuid() != 0, timeout=200_000
        )
        yield chromium
        chromium.close()
