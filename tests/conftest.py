"""One cache and one Ray for the whole session of a process."""

import os
import shutil
import tempfile

import pytest
import torch

# Set before anything is imported that reads it, and inherited by every process that a test starts.
os.environ.setdefault("HEDGEROW_CACHE", tempfile.mkdtemp(prefix="hedgerow-test-cache-"))
torch.set_num_threads(1)


LONGEST = (
    *("search", "scheduler", "ray", "nodes", "json", "docs", "faults", "tracking", "tables", "packs", "moml_tables"),
    *("submit", "mlflow_page", "local_first", "fedbioacc_theory", "resume", "notebook", "fedbio_baselines", "storage"),
)
"""Files of tests that take long come first, so that none is left to one process alone in the end."""


def pytest_collection_modifyitems(items):
    rank = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


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
