"""A chunk of clients that does not fit into memory is halved, and the run has the numbers of the smaller chunk."""

import json
import re

import pytest
import torch
from ray_runs import numbers, same, small
from searches import plan

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.runs.runner import resume, run
from hedgerow.platform.runtime.autotune import Measurement, Workload, tune_plan
from hedgerow.platform.runtime.coordinator import Coordinator, build_coordinator
from hedgerow.platform.runtime.executor import Executor
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.runtime.shards import ExecutionPlan, ObjectsLost, PlanFailed
from hedgerow.platform.tracking.tracker import RunLog
from hedgerow.searchspaces.results.trials import expert_folder
from hedgerow.searchspaces.tune.search_runner import search

INLINE = {"resources": {"executor": "inline"}, "algorithm__name": "toys.Hungry"}
STEPS = {"train": "train/clients", "evaluate": "evaluate_client/clients"}


@pytest.fixture
def round_by_round(monkeypatch):
    """Every round is reported before the next one runs."""
    monkeypatch.setattr("hedgerow.platform.runs.runner.ADVANCE_SECONDS", 0.0)


def vmap(chunk: int) -> dict:
    return {"mode": "vmap", "chunk": chunk, "compiled": False}


def chunks(step: str, chunk: int, other: int = 4) -> dict:
    """The section `engine` with this chunk for a step, and another one for the rest."""
    return {"mode": "vmap", "chunk": other, "plans": {STEPS[step]: {"mode": "vmap", "chunk": chunk}}}


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
@pytest.mark.parametrize("step", ["train", "evaluate"])
@pytest.mark.grid
def test_a_run_whose_chunk_is_halved_has_the_numbers_of_one_with_that_chunk(tmp_path, step, kind, capsys):
    settings = INLINE | {"algorithm__kind": kind, "algorithm__step": step}
    halved = run(small(tmp_path / "halved", **settings, engine=chunks(step, 4)))
    given = run(small(tmp_path / "given", **settings, engine=chunks(step, 2)))
    assert same(halved, given)
    assert halved.plans == given.plans
    assert halved.plans[STEPS[step]] == vmap(2)
    record = halved.folder.record()
    sentence = (
        f"round 1 is repeated: the step {STEPS[step]} does not fit into memory with 4 clients at once, and runs with 2 "
        "from now on"
    )
    assert record["notices"] == [sentence]
    assert halved.warning == sentence
    assert f"hedgerow: {sentence}\n" in capsys.readouterr().err
    assert "notices" not in given.folder.record()
    # The recorded plan repeats the run, without a failure.
    again = run(small(tmp_path / "again", **settings, engine={"mode": "vmap", "chunk": 4, "plans": halved.plans}))
    assert same(again, halved)
    assert "notices" not in again.folder.record()


def test_a_chunk_is_halved_until_it_fits(tmp_path):
    settings = INLINE | {"algorithm__most": 1, "engine": {"mode": "vmap", "chunk": 6}}
    halved = run(small(tmp_path / "halved", **settings))
    assert halved.plans["train/clients"] == vmap(1)
    assert len(halved.folder.record()["notices"]) == 2
    settings |= {"engine": {"mode": "vmap", "chunk": 6, "plans": {"train/clients": {"mode": "vmap", "chunk": 1}}}}
    assert same(run(small(tmp_path / "given", **settings)), halved)


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_a_client_that_does_not_fit_alone_ends_the_run_in_one_sentence(tmp_path, kind):
    settings = INLINE | {"algorithm__most": 0, "algorithm__kind": kind, "engine": {"mode": "vmap", "chunk": 2}}
    with pytest.raises(UserError, match=r"the run does not fit into memory; lower algorithm\.batch_size") as caught:
        run(small(tmp_path, **settings))
    assert len(str(caught.value).splitlines()) == 1
    (folder,) = tmp_path.glob("small-*")
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "failed"
    assert len(record["notices"]) == 1


@pytest.mark.usefixtures("round_by_round")
@pytest.mark.parametrize("every", [1, 1000])
def test_a_resumed_run_changes_its_plan_at_the_same_round(tmp_path, every):
    """Rounds 1 and 2 have run in chunks of 4 when memory becomes scarce; the run is killed after round 3."""
    limit = tmp_path / "limit"

    def start(name: str, is_killed: bool):
        limit.unlink(missing_ok=True)

        def show(record):
            if record["round"] == 2:
                limit.touch()
            if record["round"] == 3 and is_killed:
                raise RuntimeError

        settings = INLINE | {"algorithm__limit_file": str(limit), "checkpoints__every": every, "rounds": 6}
        return run(small(tmp_path / name, **settings, engine=chunks("train", 4)), show=show)

    calm = start("calm", is_killed=False)
    assert [notice[:19] for notice in calm.folder.record()["notices"]] == ["round 3 is repeated"]
    with pytest.raises(RuntimeError):
        start("killed", is_killed=True)
    (folder,) = (tmp_path / "killed").glob("small-*")
    assert json.loads((folder / "run.json").read_text())["plans"]["train/clients"] == vmap(2)
    # With room again, the plan stays the one that the run has chosen.
    limit.unlink()
    resumed = resume(str(folder))
    assert same(resumed, calm)
    assert resumed.plans == calm.plans
    assert len(resumed.folder.record()["notices"]) == 1


@pytest.mark.usefixtures("round_by_round")
def test_rounds_that_are_repeated_later_run_under_the_plan_they_had(tmp_path, monkeypatch):
    """The replay begins before round 3, whose chunk was halved: no earlier round runs under the smaller chunk."""
    limit, replayed, original = tmp_path / "limit", [], Executor.run

    def run_with_limit(name: str, lost_in: int):
        limit.unlink(missing_ok=True)
        replayed.clear()

        def lose_worker(self, exchanges):
            replayed.append(exchanges[0].cohort.round)
            if replayed[-1] == lost_in and replayed.count(lost_in) == 1:
                # There is room again, but the run does not go back to the larger chunk.
                limit.unlink()
                raise ObjectsLost("lost")
            return original(self, exchanges)

        monkeypatch.setattr(Executor, "run", lose_worker)
        settings = INLINE | {"algorithm__limit_file": str(limit), "checkpoints__every": 1000, "rounds": 5}
        show = lambda record: limit.touch() if record["round"] == 2 else None  # noqa: E731
        return run(small(tmp_path / name, **settings, engine=chunks("train", 4)), show=show)

    calm, disturbed = run_with_limit("calm", 0), run_with_limit("disturbed", 5)
    assert same(calm, disturbed)
    assert min(replayed[replayed.index(5) :]) == 3
    assert disturbed.folder.record()["notices"] == [
        *calm.folder.record()["notices"],
        "results were lost with their node (lost); the run continues from round 3",
    ]


def test_experts_of_a_trial_halve_their_chunk_together(tmp_path):
    data = check(small(tmp_path, **INLINE), None)

    def start(chunk: int) -> tuple[Coordinator, list[str]]:
        engine = chunks("train", chunk)
        experiments = [small(tmp_path, **INLINE, engine=engine, algorithm__lr=lr) for lr in (0.1, 0.2)]
        folders = [tmp_path / str(chunk) / name / "checkpoints" for name in ("000", "001")]
        coordinator, notices = build_coordinator(experiments, *data, folders), []
        coordinator.on_notice = notices.append
        while not coordinator.done:
            coordinator.run_round()
        return coordinator, notices

    (halved, notices), (given, none) = start(4), start(2)
    assert (len(notices), len(none)) == (1, 0)
    assert halved.executor.plans.known == given.executor.plans.known
    for one, other in zip(halved.servers, given.servers, strict=True):
        first, second = ([{**record, "seconds": 0} for record in server.history] for server in (one, other))
        assert first == second


@pytest.mark.exhaustive("processes")
@pytest.mark.usefixtures("ray_here")
@pytest.mark.parametrize("step", ["train", "evaluate"])
def test_client_actors_halve_their_chunk_as_well(tmp_path, step):
    settings = {
        "resources": {"executor": "ray", "actors": 2},
        "algorithm__name": "toys.Hungry",
        "algorithm__step": step,
        "clients_per_round": "all",
    }
    halved = run(small(tmp_path / "halved", **settings, engine=chunks(step, 4)))
    given = run(small(tmp_path / "given", **settings, engine=chunks(step, 2)))
    assert same(halved, given)
    assert halved.plans == given.plans
    assert halved.plans[STEPS[step]] == vmap(2)
    (notice,) = halved.folder.record()["notices"]
    assert notice.startswith(f"round 1 is repeated: the step {STEPS[step]} does not fit")


@pytest.mark.exhaustive("processes")
@pytest.mark.usefixtures("ray_here")
def test_a_search_reports_the_trials_whose_chunk_was_halved(tmp_path):
    changes = {"algorithm": {"name": "toys.Hungry", "batch_size": 8}, "rounds": 2}
    halved = search(plan(tmp_path / "halved", **changes, engine=chunks("train", 4)))
    given = search(plan(tmp_path / "given", **changes, engine=chunks("train", 2)))
    sentence = "the step train/clients does not fit into memory with 4 clients at once, and runs with 2 from now on"
    notices = halved.folder.record()["notices"]
    assert notices
    assert all(re.fullmatch(rf"trial [\d, ]+: round 1 is repeated: {sentence}", notice) for notice in notices)
    assert "notices" not in given.folder.record()
    for number in range(4):
        one, other = (expert_folder(done.folder.path, number) for done in (halved, given))
        assert one.record()["plans"] == other.record()["plans"]
        first, second = ([{**r, "seconds": 0} for r in RunLog(folder.metrics).read()] for folder in (one, other))
        assert first == second


@pytest.mark.exhaustive("processes")
@pytest.mark.usefixtures("ray_here")
def test_a_client_that_does_not_fit_alone_ends_a_run_on_ray_in_one_sentence(tmp_path):
    settings = {"resources": {"executor": "ray", "actors": 2}, "algorithm__name": "toys.Hungry", "algorithm__most": 0}
    for kind in ("cuda", "cpu"):
        with pytest.raises(UserError, match="the run does not fit into memory") as caught:
            run(small(tmp_path / kind, **settings, algorithm__kind=kind))
        assert len(str(caught.value).splitlines()) == 1


def test_a_measurement_halves_the_smallest_chunk_until_it_fits(tmp_path, monkeypatch):
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path))

    def measure(plan, steps=2):
        if plan.chunk > most:
            raise PlanFailed("train/clients", plan, "no room")
        if not most:
            raise torch.OutOfMemoryError("no room")
        return Measurement(1.0)

    only = EngineConfig(mode="vmap")
    for most, chunk in ((8, 8), (3, 2), (1, 1)):
        assert tune_plan(only, None, Workload(16, steps=2), {"most": most}, measure) == ExecutionPlan("vmap", chunk)
    most = 0
    with pytest.raises((torch.OutOfMemoryError, PlanFailed)):
        tune_plan(only, None, Workload(16, steps=2), {"most": most}, measure)


def test_a_plan_that_fails_with_more_mini_batches_is_not_chosen(tmp_path, monkeypatch):
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path))

    def measure(plan, steps=2):
        if plan.chunk == 8 and steps > 2:
            raise PlanFailed("train/clients", plan, "no room")
        return Measurement(0.01 * plan.chunk**0.1)

    assert tune_plan(EngineConfig(), None, Workload(8, steps=20), {}, measure) == ExecutionPlan("vmap", 4)


@pytest.mark.usefixtures("round_by_round")
def test_numbers_agree_to_1e_5_where_the_chunk_changes_in_between(tmp_path):
    limit = tmp_path / "limit"
    settings = INLINE | {"algorithm__limit_file": str(limit)}

    def show(record):
        if record["round"] == 2:
            limit.touch()

    changed = run(small(tmp_path / "changed", **settings, engine=chunks("train", 4)), show=show)
    assert changed.plans["train/clients"] == vmap(2)
    limit.unlink()
    constant = run(small(tmp_path / "constant", **settings, engine=chunks("train", 4)))
    for one, other in zip(numbers(changed), numbers(constant), strict=True):
        assert one == pytest.approx(other, abs=1e-5)
