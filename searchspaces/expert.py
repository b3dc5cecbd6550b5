"""A trial of a search: one federated run in its own run folder, as Ray Tune sees it."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune import PlacementGroupFactory

from hedgerow.platform.build import build_partition
from hedgerow.platform.coordinator import Coordinator
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.experiment import Experiment, Resources
from hedgerow.platform.experiment_file import parse_experiment
from hedgerow.platform.federated import Record
from hedgerow.platform.placement import bundle
from hedgerow.platform.process import settle
from hedgerow.platform.ray_executor import Hosting, RayExecutor
from hedgerow.platform.runs import RunFolder
from hedgerow.platform.tracking import RunLog
from hedgerow.searchspaces.space import with_overrides


@dataclass(frozen=True)
class Shared:
    """What all trials of a search have in common.

    values: the experiment file. report_every: rounds per result. data, partition: their place in the object store.
    """

    values: dict[str, Any]
    folder: Path
    import_path: list[str]
    report_every: int
    data: Any
    partition: Any


class Expert(tune.Trainable):
    """Runs rounds and reports them; its state is the run folder, so that whatever dies goes on from there.

    config: {"overrides": values by dotted key}. The trial's process is the coordinator; with one client actor, which is
    what `actors: auto` means in a search, it hosts the clients too.
    """

    reported: int
    """Rounds that Tune knows already."""
    log: RunLog | None
    """Opened by the process that really runs the trial."""

    def setup(self, config: dict[str, Any], shared: Shared) -> None:  # type: ignore[override]
        settle(1, shared.import_path)
        self.shared = shared
        # Views of the object store: one copy of the data per node, whatever the number of trials.
        self.dataset = Dataset.from_arrays(ray.get(shared.data))
        self.base = parse_experiment(shared.values)
        self.base_partition = Partition.from_arrays(ray.get(shared.partition))
        self.clients: RayExecutor | None = None
        self._open(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Become another trial: a process starts torch once, and serves one trial after the other."""
        self._open(new_config)
        return True

    def step(self) -> Record:
        """Run to the next report; the result holds the records of its rounds."""
        run = self.coordinator.run
        if self.log is None:
            # Only now: Tune may set up a second process for a trial that another one already serves, and drop it.
            self.log = RunLog(self.folder.metrics)
            self.log.replace(run.history)
        until = min(run.experiment.rounds, run.round + self.stride - run.round % self.stride)
        while run.round < until and not self.stopped:
            self.log.append(self.coordinator.one_round())
        records, self.reported = run.history[self.reported :], len(run.history)
        last = next((record for record in reversed(run.history) if "test_accuracy" in record), {})
        return {**last, "round": run.round, "records": records, "done": self.coordinator.done or self.stopped}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Make sure that the run folder holds this round, and tell where it is."""
        checkpoint = self.coordinator.save()
        token = {"folder": str(self.folder.path), "checkpoint": str(checkpoint), "reported": self.reported}
        (Path(checkpoint_dir) / "expert.json").write_text(json.dumps(token))

    def load_checkpoint(self, checkpoint_dir: Any) -> None:
        """Go on from a checkpoint: this trial's own, or, in population based training, another trial's."""
        token = json.loads((Path(checkpoint_dir) / "expert.json").read_text())
        if token["folder"] != str(self.folder.path):
            self.coordinator.load(Path(token["checkpoint"]))
            self.coordinator.save()
        # A run folder that is ahead of what Tune knows reports the rest again; what is known twice does no harm.
        self.reported = min(token["reported"], len(self.coordinator.run.history))

    def cleanup(self) -> None:
        if self.clients is not None:
            self.clients.close()

    def _open(self, config: dict[str, Any]) -> None:
        self.folder = expert_folder(self.shared.folder, number_of(self.trial_id, config))
        experiment = parse_experiment(with_overrides(self.shared.values, config["overrides"]))
        self.folder.checkpoints.mkdir(parents=True, exist_ok=True)
        # Stopped early before the search was interrupted: it tells what it has, and stays stopped.
        self.stopped = self.folder.exists and self.folder.record()["status"] == "stopped"
        every = experiment.evaluation.every
        self.stride = math.ceil(self.shared.report_every / every) * every
        partition = self._partition(experiment)
        values = experiment.model_dump(mode="json")
        executor = self._executor(experiment, partition)
        self.coordinator = Coordinator(values, self.dataset, partition, executor, self.folder.checkpoints)
        self.log = None
        self.reported = 0

    def _partition(self, experiment: Experiment) -> Partition:
        same = experiment.task.partition == self.base.task.partition and experiment.seed == self.base.seed
        return self.base_partition if same else build_partition(experiment, self.dataset)

    def _executor(self, experiment: Experiment, partition: Partition) -> RayExecutor | None:
        """Client actors in the trial's placement group; None: this process hosts the clients."""
        resources, shared = experiment.resources, self.shared
        actors = client_actors(resources)
        if actors == 1:
            return None
        drawn = shared.partition if partition is self.base_partition else ray.put(partition.arrays())
        hosting = Hosting(experiment.model_dump(mode="json"), shared.import_path, shared.data, drawn)
        if self.clients is None:
            group = ray.util.get_current_placement_group()
            assert group is not None, "Tune gives every trial its placement group"
            # The last bundles: a first one, for this process, is there only where it reserves anything.
            bundles = list(range(group.bundle_count - actors, group.bundle_count))
            self.clients = RayExecutor(hosting, group, bundles, resources.cpus_per_actor, resources.gpus_per_actor)
        else:
            self.clients.host(hosting)
        return self.clients


NUMBER = "number"


def number_of(trial_id: str, config: dict[str, Any]) -> int:
    """A trial's number: Tune counts the trials in their identifiers, except those that a searcher proposed."""
    return config[NUMBER] if NUMBER in config else int(trial_id.rsplit("_", 1)[-1])


def expert_folder(search_folder: Path, index: int) -> RunFolder:
    """The run folder of a search's trial."""
    return RunFolder(search_folder / "experts" / f"{index:03d}")


def client_actors(resources: Resources) -> int:
    """Client actors of each trial: one, unless the file asks for more."""
    if resources.executor == "inline" or resources.actors == "auto":
        return 1
    return resources.actors


def trial_resources(resources: Resources, share: float = 0.0) -> PlacementGroupFactory:
    """What each trial reserves: a bundle for itself, and, where there are several client actors, one for each of them.

    share: CPUs that it keeps from other trials in all, where fewer are to run at once than there is room for.
    """
    actors = client_actors(resources)
    one = bundle(resources)
    if actors == 1:
        return PlacementGroupFactory([one | {"CPU": max(share, resources.cpus_per_actor)}])
    rest = max(0.0, share - actors * resources.cpus_per_actor)
    return PlacementGroupFactory([{"CPU": rest} if rest else {}, *[one] * actors])
