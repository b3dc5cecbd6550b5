"""pfl-research: SimulatedBackend in one process or in two, each with a resident model, reduced by gloo."""

import os
import socket
import subprocess
import sys
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from bare import Outcome
from torch.nn import functional as F  # noqa: N812

PROCESSES = 2


def two(job: Any) -> Outcome | None:
    """Run in two processes, set up by pfl's own environment variables; only the first returns an outcome."""
    if "PFL_WORKER_RANK" in os.environ:
        return one(job)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ["PFL_WORKER_ADDRESSES"] = ",".join([f"127.0.0.1:{port}"] * PROCESSES)
    others = [
        subprocess.Popen([sys.executable, *sys.argv], env=os.environ | {"PFL_WORKER_RANK": str(rank)})
        for rank in range(1, PROCESSES)
    ]
    os.environ["PFL_WORKER_RANK"] = "0"
    outcome = one(job)
    for other in others:
        other.wait()
    return outcome


def one(job: Any) -> Outcome | None:
    # pfl joins its process group when it is imported.
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.internal.ops.pytorch_ops import get_default_device
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class Clock(TrainingProcessCallback):
        def on_train_begin(self, *, model: Any) -> Metrics:
            self.moments = [time.time()]
            return Metrics()

        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            self.moments.append(time.time())
            return False, Metrics()

    torch.set_num_threads(1)
    device = get_default_device()
    module, x, y = (part.to(device) for part in job.load())
    module.loss = lambda x, y: F.cross_entropy(module(x), y)
    # pfl always evaluates the users of its first round; without metrics, that costs nothing.
    module.metrics = lambda x, y: {}
    rounds, cohort, steps, batch = job.rows.shape
    users = iter(job.rows.reshape(-1, steps * batch))

    def user(rows: np.ndarray) -> PyTorchTensorDataset:
        # The user's samples in the order of its mini-batches, epoch after epoch: pfl slices batches off in turn.
        return PyTorchTensorDataset((x[rows], y[rows]))

    clock = Clock()
    data = FederatedDataset(user, lambda: next(users))
    model = PyTorchModel(
        module,
        local_optimizer_create=partial(torch.optim.SGD, foreach=True),
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0, foreach=True),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=rounds, train_cohort_size=cohort, val_cohort_size=None
        ),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=job.lr, local_batch_size=batch),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    if os.environ.get("PFL_WORKER_RANK", "0") != "0":
        return None
    return clock.moments, {name: p.detach().cpu().numpy() for name, p in module.named_parameters()}
