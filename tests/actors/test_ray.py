"""On Ray: as inline, with any number of actors, and when processes are killed."""

import re
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest
from ray_runs import hosts_coordinator, numbers, one_by_one, same, small

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.runs.runner import FinishedRun, run


@pytest.fixture(scope="module")
def undisturbed(ray_here, tmp_path_factory) -> FinishedRun:
    return run(small(tmp_path_factory.mktemp("one")))


@pytest.mark.usefixtures("ray_here")
class TestOnRay:
    def test_run_twice_alike_it_is_identical(self, undisturbed, tmp_path):
        assert same(run(small(tmp_path)), undisturbed)

    @pytest.mark.exhaustive("processes")
    def test_three_actors_equal_one(self, undisturbed, tmp_path):
        other = run(small(tmp_path, resources__actors=3))
        for name, value in undisturbed.parameters.items():
            assert np.abs(value - other.parameters[name]).max() < 1e-6
        for mine, theirs in zip(numbers(undisturbed), numbers(other), strict=True):
            assert mine == pytest.approx(theirs, abs=1e-6)

    def test_inline_equals_ray(self, undisturbed, tmp_path):
        assert same(run(small(tmp_path, resources__executor="inline")), undisturbed)

    @pytest.mark.grid(keep=1)
    @pytest.mark.parametrize("actors", [1, 2])
    def test_a_client_actor_killed_in_mid_round_changes_nothing(self, actors, tmp_path):
        death, log = tmp_path / "death", tmp_path / "log"
        settings = {
            "clients_per_round": "all",
            "checkpoints__every": 100,
            "engine__mode": "loop",
            "engine__chunk": "auto",
            "resources__actors": actors,
        }
        # The process dies in round 3.
        death.touch()
        fatal = {"algorithm__kill_file": str(death), "algorithm__log_file": str(log)}
        calm, disturbed = one_by_one(
            small(tmp_path / "calm", **settings), small(tmp_path / "disturbed", **fatal, **settings)
        )
        assert not death.exists()
        assert same(calm, disturbed)
        # Only the part that was lost ran again: the client that died was its first one.
        ran = Counter(log.read_text().split())
        assert (ran["1"], ran["2"], ran["3"]) == (12, 13, 12)
        (notice,) = disturbed.folder.record()["notices"]
        assert re.fullmatch(r"client actor [01] was lost \(.*died.*\) and replaced; its work runs again", notice)

    @pytest.mark.exhaustive("kills")
    def test_only_the_lost_share_of_clients_without_states_runs_again(self, tmp_path):
        death, log = tmp_path / "death", tmp_path / "log"
        death.touch()
        settings = {"clients_per_round": "all", "engine__mode": "loop", "engine__chunk": "auto", "resources__actors": 2}
        named = {"name": "toys.Counted", "epochs": 2, "batch_size": 8}
        calm, disturbed = one_by_one(
            small(tmp_path / "calm", algorithm=named | {"log_file": str(tmp_path / "other")}, **settings),
            small(tmp_path / "run", algorithm=named | {"log_file": str(log), "kill_file": str(death)}, **settings),
        )
        assert not death.exists()
        assert same(calm, disturbed)
        # 12 clients in four rounds, the one that died in its actor's second round again, and two in the check before.
        counts = list(Counter(log.read_text().split()).values())
        assert sum(counts) == 48 + 1 + 2
        assert 7 in counts

    @pytest.mark.exhaustive("kills")
    def test_a_killed_coordinator_goes_on_from_its_checkpoint(self, tmp_path):
        victims = []

        def kill_once(record):
            if not victims:
                # Of this Ray alone: others may be at work on this machine.
                victims.extend(p for p in psutil.Process().children(recursive=True) if hosts_coordinator(p))
                victims[0].kill()

        settings = {"rounds": 200, "checkpoints__every": 7}
        with ThreadPoolExecutor() as pool:
            calmly = pool.submit(run, small(tmp_path / "calm", resources__executor="inline", **settings))
            disturbed = run(small(tmp_path / "killed", **settings), show=kill_once)
            calm = calmly.result()
        assert len(victims) == 1
        assert same(calm, disturbed)

    def test_actors_and_resources_are_given_back(self, ray_here, undisturbed):
        deadline = time.time() + 20
        while ray_here.available_resources().get("CPU") != 4 and time.time() < deadline:
            time.sleep(0.2)
        assert ray_here.available_resources().get("CPU") == 4

    @pytest.mark.parametrize(
        ("resources", "fragment"),
        [
            ({"actors": 64}, "64 client actors of 1 CPU"),
            ({"actors": 1, "gpus_per_actor": 0.25}, "1 client actor of 1 CPU and 0.25 GPU cannot be placed"),
            ({"actors": 1, "cpus_per_actor": 99.0}, "room for 0"),
        ],
    )
    def test_more_than_the_cluster_has_is_refused_at_once(self, resources, fragment, tmp_path):
        start = time.time()
        with pytest.raises(UserError, match=fragment) as refused:
            run(small(tmp_path, resources=resources))
        assert "\n" not in str(refused.value)
        assert time.time() - start < 30

    @pytest.mark.exhaustive("processes")
    def test_a_run_in_a_thread_works_as_in_tune(self, undisturbed, tmp_path):
        results = []
        thread = threading.Thread(target=lambda: results.append(run(small(tmp_path))))
        thread.start()
        thread.join()
        assert same(results[0], undisturbed)


def test_how_many_actors_fit():
    from hedgerow.platform.actors.actor_room import actors_that_fit

    nodes = [{"CPU": 4.0, "GPU": 2.0}, {"CPU": 16.0}, {"CPU": 1.0, "GPU": 1.0}]
    assert actors_that_fit(Resources(cpus_per_actor=1), nodes) == 21
    assert actors_that_fit(Resources(cpus_per_actor=1, gpus_per_actor=0.25), nodes) == 5
    # A share of 0.4 leaves 0.2 of each GPU unused: a share is on one GPU.
    assert actors_that_fit(Resources(cpus_per_actor=0.5, gpus_per_actor=0.4), nodes) == 6
    assert actors_that_fit(Resources(cpus_per_actor=0, gpus_per_actor=1), nodes) == 3
