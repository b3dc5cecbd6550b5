"""DiSK in a search, on Ray, and killed: the central loop has a teacher, a guide and momenta to keep."""

import psutil
import pytest
from ray_runs import hosts_coordinator, one_by_one, same, small
from searches import one_after_the_other, plan

from hedgerow.platform.runs.runner import run
from hedgerow.searchspaces.tune.search_runner import search

TASK = {
    "data": {"name": "digits"},
    "partition": {"kind": "iid", "clients": 1, "samples_per_client": 200},
    "model": {"name": "mlp", "hidden": [4]},
    "teacher": {"model": {"name": "mlp_static", "hidden": [8]}, "epochs": 2, "lr": 0.05},
}
DISK = {
    "name": "disk", "lr": 0.1, "momentum": 0.9, "batch_size": 40, "warm_start": 1, "lr_cosine": 4, "top_k": 3,
    "guide_hidden": [4], "student_tau": "fit",
}  # fmt: skip
SETTINGS = {"task": TASK, "algorithm": DISK, "clients_per_round": "all", "engine": {"mode": "loop"}}


@pytest.mark.exhaustive("processes")
@pytest.mark.parametrize("pack", ["off", 2])
def test_experts_of_a_search_are_what_they_are_alone(pack, ray_here, tmp_path):
    settings = {**SETTINGS, "search__space": {"algorithm.alpha": [0.1, 0.9]}, "search__pack": pack, "rounds": 3}
    settings["evaluation"] = {"clients": 1}
    found = search(plan(tmp_path / "search", **settings))
    assert found.warning is None
    assert [trial.status for trial in found.trials] == ["finished"] * 2
    assert found.hedge == one_after_the_other(plan(tmp_path / "alone", **settings))
    losses = [trial.records[-1]["test_loss"] for trial in found.trials]
    assert losses[0] != losses[1]


@pytest.mark.exhaustive("kills")
def test_on_ray_and_inline_and_killed_it_is_the_same(ray_here, tmp_path):
    """The process of the loop is killed in a round after the teacher's schooling, which is not repeated otherwise."""
    settings = {**SETTINGS, "rounds": 120, "checkpoints__every": 3}
    victims = []

    def kill_once(record):
        if record["round"] >= 4 and not victims:
            victims.extend(p for p in psutil.Process().children(recursive=True) if hosts_coordinator(p))
            victims[0].kill()

    inline, calm = one_by_one(
        small(tmp_path / "inline", **settings, resources__executor="inline"), small(tmp_path / "calm", **settings)
    )
    disturbed = run(small(tmp_path / "killed", **settings), show=kill_once)
    assert len(victims) == 1
    assert same(inline, calm)
    assert same(inline, disturbed)
