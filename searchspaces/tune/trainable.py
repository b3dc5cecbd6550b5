"""A trial of a search, as Ray Tune sees it: the runs of its experts, each in its own run folder."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune import PlacementGroupFactory

from hedgerow.platform.actors.client_actor import ActorSpec, RayExecutor
from hedgerow.platform.actors.placement import bundles
from hedgerow.platform.actors.silence import Signs
from hedgerow.platform.common.heartbeat import listen
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.runtime.factory import build_partition
from hedgerow.platform.runtime.launch import build_coordinator
from hedgerow.platform.runtime.process import init_process
from hedgerow.platform.storage.checkpoint import DamagedCheckpoint
from hedgerow.platform.storage.run_lock import Claim
from hedgerow.platform.tracking.records import RoundRecord
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.tracking.tracker import RunLog
from hedgerow.searchspaces.results.trials import expert_folder
from hedgerow.searchspaces.spaces.packing import client_actors, members
from hedgerow.searchspaces.spaces.space import Overrides, with_overrides


@dataclass(frozen=True)
class Shared:
    """What all trials of a search have in common.

    values: the experiment file. report_every: rounds per result. data, partition: their place in the object store.
    claim: of the process that runs the search.
    """

    values: dict[str, Any]
    folder: Path
    import_path: list[str]
    report_every: int
    data: Any
    partition: Any
    claim: Claim


@dataclass
class TrialRun:
    """One expert of a trial: its run folder is its state, so that whatever dies goes on from there."""

    number: int
    folder: RunFolder
    experiment: Experiment
    stopped: bool
    """Early, before the search was interrupted: it tells what it has, and stays stopped."""
    reported: int = 0
    """Rounds that Tune knows already."""
    log: RunLog | None = None
    """Opened by the process that really runs the trial."""


class FederatedTrainable(tune.Trainable):
    """Runs rounds of one expert, or of a pack of them, and reports them.

    config: see `packs.members`. The trial's process is the coordinator; with one client actor, which is what
    `actors: auto` means in a search, it hosts the clients too.
    """

    def setup(self, config: dict[str, Any], shared: Shared) -> None:  # type: ignore[override]
        init_process(1, shared.import_path)
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

    def step(self) -> RoundRecord:
        """Run to the next report; the result holds the new records, each with the number of its expert."""
        run = self.coordinator
        for member, server in zip(self.members, run.servers, strict=True):
            if member.log is None:
                # Only now: Tune may set up a second process for a trial that another one serves, and drop it.
                member.log = RunLog(member.folder.metrics)
                member.log.replace(server.history)
        stopped = all(member.stopped for member in self.members)
        until = min(self.members[0].experiment.rounds, run.round + self.stride - run.round % self.stride)
        while run.round < until and not run.done and not stopped:
            for i, record in run.run_round().items():
                log = self.members[i].log
                assert log is not None
                log.append(record)
        records = []
        for member, server in zip(self.members, run.servers, strict=True):
            records += [{"expert": member.number, **record} for record in server.history[member.reported :]]
            member.reported = len(server.history)
        # What schedulers that know single experts only look at.
        last = next((record for record in reversed(run.servers[0].history) if "test_accuracy" in record), {})
        told = {"records": records, "warnings": run.warnings(), "done": run.done or stopped}
        return {**last, "round": run.round, **told}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Make sure that the run folders hold this round, and tell where they are."""
        saved = self.coordinator.save()
        tokens = [
            {"folder": str(member.folder.path), "checkpoint": str(checkpoint), "reported": member.reported}
            for member, checkpoint in zip(self.members, saved, strict=True)
        ]
        (Path(checkpoint_dir) / "experts.json").write_text(json.dumps(tokens))

    def load_checkpoint(self, checkpoint_dir: Any) -> None:
        """Go on from a checkpoint: this trial's own, or, in population based training, another trial's."""
        tokens = json.loads((Path(checkpoint_dir) / "experts.json").read_text())
        run = self.coordinator
        for i, (member, token) in enumerate(zip(self.members, tokens, strict=True)):
            if token["folder"] != str(member.folder.path):
                checkpoint = Path(token["checkpoint"])
                try:
                    run.load(i, checkpoint)
                except DamagedCheckpoint:
                    # The other trial may have gone on, and deleted it for newer ones.
                    if checkpoint.exists() or not run.load_newest(i, checkpoint.parent):
                        raise
                run.save()
            # A run folder that is ahead of what Tune knows reports the rest again; what is known twice does no harm.
            member.reported = min(token["reported"], len(run.servers[i].history))

    def save_run(self) -> None:
        """Make sure that the run folders hold this round."""
        self.coordinator.save()

    def cleanup(self) -> None:
        if self.clients is not None:
            self.clients.close()

    def _open(self, config: dict[str, Any]) -> None:
        self.members = [self._member(number, overrides) for number, overrides in members(self.trial_id, config)]
        experiments = [member.experiment for member in self.members]
        every = experiments[0].evaluation.every
        self.stride = math.ceil(self.shared.report_every / every) * every
        partition = self._partition(experiments[0])
        listen(Signs(signs_file(self.members[0].folder)).alive)
        executor = self._executor(experiments, partition)
        folders = [member.folder.checkpoints for member in self.members]
        self.coordinator = build_coordinator(experiments, self.dataset, partition, executor, folders, self.shared.claim)

    def _member(self, number: int, overrides: Overrides) -> TrialRun:
        folder = expert_folder(self.shared.folder, number)
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
        stopped = folder.exists and folder.record()["status"] == "stopped"
        return TrialRun(number, folder, parse_experiment(with_overrides(self.shared.values, overrides)), stopped)

    def _partition(self, experiment: Experiment) -> Partition:
        same = experiment.task.partition == self.base.task.partition and experiment.seed == self.base.seed
        return self.base_partition if same else build_partition(experiment, self.dataset)

    def _executor(self, experiments: list[Experiment], partition: Partition) -> RayExecutor | None:
        """Client actors in the trial's placement group; None: this process hosts the clients."""
        resources, shared = experiments[0].resources, self.shared
        actors = client_actors(resources)
        if actors == 1:
            return None
        drawn = shared.partition if partition is self.base_partition else ray.put(partition.arrays())
        spec = ActorSpec(experiments, shared.import_path, shared.data, drawn)
        signs = Signs(signs_file(self.members[0].folder))
        if self.clients is None:
            group = ray.util.get_current_placement_group()
            assert group is not None, "Tune gives every trial its placement group"
            # The last bundles: a first one, for this process, is there only where it reserves anything.
            bundles = list(range(group.bundle_count - actors, group.bundle_count))
            self.clients = RayExecutor(spec, group, bundles, signs)
        else:
            self.clients.signs = signs
            self.clients.load_run(spec)
        return self.clients


def signs_file(folder: RunFolder) -> Path:
    """Where the process of a trial gives signs of life. folder: of its first expert."""
    return folder.path / ".signs"


def trial_resources(resources: Resources, share: float = 0.0) -> PlacementGroupFactory:
    """What each trial reserves: a bundle for itself, and, where there are several client actors, one for each of them.

    share: CPUs that it keeps from other trials in all, where fewer are to run at once than there is room for.
    """
    actors = client_actors(resources)
    one = bundles(resources, 1)[0]
    if actors == 1:
        return PlacementGroupFactory([one | {"CPU": max(share, resources.cpus_per_actor)}])
    strategy = resources.placement.upper()
    rest = max(0.0, share - actors * resources.cpus_per_actor)
    return PlacementGroupFactory([{"CPU": rest} if rest else {}, *[one] * actors], strategy)
