"""A Ray whose processes start without torch, which scripted experts do not need."""

import pytest
import ray

from hedgerow.platform.actors import session


@pytest.fixture(scope="module")
def ray_here():
    """The session's Ray if it runs already; otherwise one for the module, with four CPUs and nothing preloaded."""
    if ray.is_initialized():
        yield ray
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(session.QUICK, "preload_python_modules", [])
        with session.local_ray(reachable=True, num_cpus=4):
            yield ray
