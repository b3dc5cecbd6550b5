"""What a process may take of its GPU's memory, and what is written down of it, as far as that is known without one."""

import numpy as np
import pytest
import torch
from helpers import blobs, partition, run_inline, small_task

from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.runtime.autotune import Measurement, Workload, tune_plan
from hedgerow.platform.runtime.process import CONTEXT, init_process, memory_fraction
from hedgerow.platform.runtime.shards import ExecutionPlan
from hedgerow.platform.tracking.summary import reported

DATA = blobs()


@pytest.mark.parametrize("total", [8e9, 24e9, 80e9])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8])
def test_all_who_share_a_gpu_have_room_beside_their_contexts(count, total):
    fraction = memory_fraction(1 / count, total)
    assert count * (fraction * total + (CONTEXT if count > 1 else 0)) <= total
    assert fraction >= 0.5 / count - 1e-4


def test_many_shares_of_a_small_gpu_are_not_empty():
    assert memory_fraction(1 / 32, 8e9) == 1 / 32 / 2
    assert memory_fraction(2, 8e9) == 1.0


def test_a_chunk_too_large_for_the_gpu_ends_the_measurement(tmp_path, monkeypatch):
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path))

    def measure(plan, steps=2):
        if plan.chunk > most:
            raise torch.OutOfMemoryError("no room")
        return Measurement(1.0)

    most = 4
    assert tune_plan(EngineConfig(), None, Workload(8, steps=2), {"most": most}, measure) == ExecutionPlan("vmap", 4)
    most = 0
    with pytest.raises(torch.OutOfMemoryError):
        tune_plan(EngineConfig(), None, Workload(8, steps=2), {"most": most}, measure)


class OnGpu:
    """A transport to a worker whose answers say that it has held this many MB of a GPU."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def wait(self, seconds):
        answers = self.inner.wait(seconds)
        for answer in answers:
            for partial in answer.value if isinstance(answer.value, list) else ():
                assert partial.gpu_peak_mb == 0
                partial.gpu_peak_mb = 123.0
        return answers


def test_the_peak_is_a_metric_of_the_rounds_and_without_a_gpu_there_is_none():
    clients = partition(np.full(3, 20), seed=0)
    calm, stamped = (run_inline(FedAvg, small_task(DATA), DATA, clients, {"batch_size": 8}) for _ in range(2))
    stamped.executor.transport = OnGpu(stamped.executor.transport)
    without, having = next(calm), next(stamped)
    assert "gpu_peak_mb" not in without
    # It is no result of the algorithm, which tables and curves would show.
    assert reported([having]) == reported([without])
    assert having.pop("gpu_peak_mb") == 123.0
    assert having.keys() == without.keys()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_process_is_held_to_its_share_and_its_peak_is_measured():
    resources = Resources(executor="inline", gpus_per_actor=0.25)
    init_process(1, resources=resources)
    total = torch.cuda.get_device_properties(0).total_memory
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(int(0.3 * total), dtype=torch.uint8, device="cuda")
    run = run_inline(
        FedAvg, small_task(DATA), DATA, partition(np.full(2, 20), seed=0), {"batch_size": 8},
        resources=resources,
    )  # fmt: skip
    assert 0 < next(run)["gpu_peak_mb"] < 0.25 * total / 1e6
