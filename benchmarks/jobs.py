"""A workload as files: the same data, initial parameters, cohorts and mini-batches for every contender."""

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from workloads import Source, Workload

from hedgerow.algorithms.core.pytree import tree_map
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import dump_experiment, load_experiment
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.data.sampling import draw_batches, sample_clients
from hedgerow.platform.runtime.factory import build_data, build_module, build_partition, task_on


@dataclass(frozen=True)
class WrittenJob:
    """A job's folder, and the model and data that evaluate its results. x_test is prepared."""

    folder: Path
    source: Source
    module: torch.nn.Module
    x_test: torch.Tensor
    y_test: torch.Tensor

    def accuracy(self, parameters: dict[str, np.ndarray]) -> float:
        """Accuracy on the test set."""
        w = tree_map(torch.from_numpy, parameters)
        with torch.no_grad():
            batches = zip(self.x_test.split(500), self.y_test.split(500), strict=True)
            correct = sum((torch.func.functional_call(self.module, w, (x,)).argmax(1) == y).sum() for x, y in batches)
        return float(correct) / len(self.y_test)

    def apart(self, parameters: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
        """Largest difference of any parameter, relative to the largest change of any from its initial value."""
        initial = {name: p.detach().numpy() for name, p in self.module.named_parameters()}
        change = max(np.abs(other[name] - p).max() for name, p in initial.items())
        return float(max(np.abs(parameters[name] - other[name]).max() for name in initial) / change)

    def shortened(self, rounds: int) -> "WrittenJob":
        """The first rounds of the same job, in a folder next to it."""
        folder = self.folder.with_name(f"{self.folder.name}-of-{rounds}")
        folder.mkdir()
        for file in self.folder.iterdir():
            (folder / file.name).symlink_to(file)
        for name in ("cohorts.npy", "rows.npy"):
            (folder / name).unlink()
            np.save(folder / name, np.load(self.folder / name)[:rounds])
        (folder / "experiment.yaml").unlink()
        experiment = load_experiment(self.folder / "experiment.yaml", [f"rounds={rounds}"])
        (folder / "experiment.yaml").write_text(dump_experiment(experiment))
        return replace(self, folder=folder)


def write_job(folder: Path, workload: Workload, data_root: Path | None) -> WrittenJob:
    """Write the files for contenders (contenders/job.py) and for Hedgerow: experiment.yaml, data.pickle."""
    folder.mkdir(parents=True)
    source = workload.source(data_root)
    experiment = workload.experiment(source)
    if source.dataset is None:
        dataset, partition = build_data(experiment, data_root)
    else:
        dataset, partition = source.dataset, build_partition(experiment, source.dataset)
        (folder / "data.pickle").write_bytes(pickle.dumps((dataset, partition)))
    (folder / "experiment.yaml").write_text(dump_experiment(experiment))
    module = build_module(experiment, dataset)
    torch.save(module, folder / "module.pt")
    prepare = task_on(dataset, module).prepare
    np.save(folder / "x.npy", prepare(torch.tensor(dataset.x_train)).numpy())
    np.save(folder / "y.npy", dataset.y_train)
    cohorts, rows = mini_batches(experiment, partition)
    np.save(folder / "cohorts.npy", cohorts)
    np.save(folder / "rows.npy", rows)
    settings = {"lr": experiment.algorithm.lr, "population": len(partition)}
    (folder / "job.json").write_text(json.dumps(settings))
    return WrittenJob(folder, source, module, *_test_set(dataset, prepare))


def mini_batches(experiment: Experiment, partition: Partition) -> tuple[np.ndarray, np.ndarray]:
    """Cohorts (rounds, C) and rows of the training set (rounds, C, steps, batch) that Hedgerow will draw.

    Every client of a cohort must have the same number of full mini-batches.
    """
    seed, population = experiment.seed, len(partition)
    cohorts, rows = [], []
    for number in range(1, experiment.rounds + 1):
        clients = sample_clients(seed, number, population, experiment.cohort_size(population))
        # FedAvg's only exchange of a round is number 0.
        key = (seed, number, 0, "train")
        positions, mask = draw_batches(
            experiment.algorithm.batches["train"], key, clients, partition.train_sizes[clients]
        )
        assert mask.all(), "mini-batches of different sizes"
        cohorts.append(clients)
        rows.append(partition.order[positions + partition.offsets[clients][:, None, None]])
    return np.stack(cohorts), np.stack(rows)


def _test_set(dataset: Dataset, prepare: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """About 1000 samples, enough to check that contenders agree. Test sets may be sorted by class, hence the stride."""
    few = slice(None, None, -(-len(dataset.y_test) // 1000))
    return prepare(torch.tensor(dataset.x_test[few])), torch.tensor(dataset.y_test[few])
