"""Processes of a Ray that a command starts are forked, and are otherwise like those that Ray starts itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, os, sys
if {ray_first}: import ray
import psutil, torch
from hedgerow.platform.actors import forked

forked.prepare()
(forks,) = psutil.Process().children()
import ray
from hedgerow.platform.actors.session import ray_session

@ray.remote(num_cpus=0)
class Actor:
    def look(self, rows):
        import gc
        weights = torch.ones(3, requires_grad=True)
        (torch.from_numpy(rows.copy()) @ weights).square().sum().backward()
        place = {"pid": os.getpid(), "parent": os.getppid(), "group": os.getpgrp(), "folder": os.getcwd()}
        import resource
        place["files"] = resource.getrlimit(resource.RLIMIT_NOFILE)
        return place | {"letter": os.environ["LETTER"], "gc": gc.isenabled(), "gradient": weights.grad.tolist()}

def look():
    import numpy as np
    rows = np.array([[1, 0, 2], [0, 3, 0]], np.float32)
    return ray.get([actor.look.remote(rows) for actor in [Actor.remote() for _ in range(2)]])

with ray_session():
    seen = look()
    forks.kill()
    forks.wait()
    later = look()
left = [one.name() for one in psutil.Process().children(recursive=True)]
print(json.dumps([forks.pid, os.getpgrp(), seen, later, left]))
"""


@pytest.mark.parametrize(
    "ray_first",
    [pytest.param(True, marks=pytest.mark.exhaustive("processes"), id="ray-first"), pytest.param(False, id="forked")],
)
def test_rays_processes_are_forked_with_the_place_and_the_variables_of_the_command(tmp_path, ray_first):
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment |= {"LETTER": "\u03b2", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{ray_first}", str(ray_first))],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    forks, group, seen, later, left = json.loads(done.stdout)
    assert len({one["pid"] for one in [*seen, *later]}) == 4
    for one in [*seen, *later]:
        assert Path(one["folder"]) == tmp_path
        assert one["letter"] == "\u03b2"
        assert one["gc"]
        # Of (a + 2 c)^2 + (3 b)^2 at 1, 1, 1.
        assert one["gradient"] == [6.0, 18.0, 12.0]
        assert one["files"] == later[0]["files"]
        # Ctrl-C at a terminal ends the command alone.
        assert one["group"] != group
    # A Ray that was imported before has the settings of that time.
    assert {one["parent"] == forks for one in seen} == {not ray_first}
    # Ordinary ones, when nothing can be forked any more.
    assert forks not in {one["parent"] for one in later}
    assert left == []
