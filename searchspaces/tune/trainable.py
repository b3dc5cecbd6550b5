"""Trainable of Ray Tune: a trial runs one or more experts, each in its own run folder."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune import PlacementGroupFactory
from ray.util.placement_group import placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from hedgerow.platform.actors.actor_room import actor_resources
from hedgerow.platform.actors.ray_transport import ActorSpec, RayTransport
from hedgerow.platform.actors.shared_folder import name_of, unshared
from hedgerow.platform.actors.surroundings import Surroundings
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import dump_experiment, parse_experiment
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.data.validation_noise import ValidationNoise, configuration_key
from hedgerow.platform.runtime.coordinator import Coordinator, build_coordinator
from hedgerow.platform.runtime.factory import build_partition
from hedgerow.platform.runtime.process import init_process
from hedgerow.platform.runtime.server import FederatedServer
from hedgerow.platform.storage.checkpoint import DamagedCheckpoint
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.storage.run_lock import Claim
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.tracking.tracker import RunLog
from hedgerow.searchspaces.hedge.deployment import is_due, keep_round
from hedgerow.searchspaces.results.trials import expert_folder
from hedgerow.searchspaces.spaces.packing import COPIED, COPIES, LINEAGE, members
from hedgerow.searchspaces.spaces.search_section import KeptRounds, Noise
from hedgerow.searchspaces.spaces.smoothing import report_of
from hedgerow.searchspaces.spaces.space import Overrides, with_overrides
from hedgerow.searchspaces.tune.purse import IS_SPENT, Purse
from hedgerow.searchspaces.tune.round_barrier import RoundBarrier

IDLE = 0.1
"""Seconds between two reports of a trial while the budget of the search is spent."""

TOKENS = "experts.json"
"""Only file of a checkpoint of Tune: the state itself is in the run folders."""


@dataclass(frozen=True)
class SearchSettings:
    """Settings of a search that its trials follow.

    report_every: rounds per result. records: whether the search is recorded. smooth: see `SearchKind.report_smooth`.
    kept: rounds that each expert keeps in files until they are complete; None: none. predictions: whether these files
    have the predictions of the evaluation.
    together: seconds of lock-step rounds that a trial reports together; None: it reports as `report_every` says.
    """

    report_every: int
    records: bool
    metric: str
    noise: Noise | None
    smooth: float
    kept: KeptRounds | None = None
    predictions: bool = False
    together: float | None = None


@dataclass(frozen=True)
class Shared:
    """Settings and data that all trials of a search share.

    values: contents of the experiment file. search: its section `search`. data, partition: references to the object
    store. claim: claim of the process that runs the search. rounds: for a search that continues from a journal of
    reports, the round of the last report of each trial in it; None: there is no such journal. purse: budget of the
    search; None: it has none.
    """

    values: dict[str, Any]
    folder: Path
    surroundings: Surroundings
    search: SearchSettings
    data: Any
    partition: Any
    claim: Claim
    rounds: Mapping[int, int] | None = None
    purse: Purse | None = None


@dataclass
class TrialRun:
    """One expert of a trial. Its run folder is its state, so that it continues from there after a failure."""

    number: int
    folder: RunFolder
    experiment: Experiment
    overrides: Overrides
    stopped: bool
    """Whether it was stopped early before the search was interrupted; it reports its rounds, and stays stopped."""
    reported: int = 0
    """Number of rounds already reported to Tune."""


class FederatedTrainable(tune.Trainable):
    """Runs rounds of one expert, or of a pack of them, and reports them.

    config: see `packing.members`. The trial's process is the coordinator. With one client actor, the meaning of
    `actors: auto` in a search, it also hosts the clients.
    """

    coordinator: Coordinator
    is_spent: bool
    """Whether the budget of the search is spent, so that no other round begins."""

    def setup(self, config: dict[str, Any], shared: Shared) -> None:  # type: ignore[override]
        init_process(1)
        shared.surroundings.install()
        if not RunFolder(shared.folder).exists:
            # A node that has joined since `check_shared`.
            node = ray.get_runtime_context().get_node_id()
            raise unshared(shared.folder, next(name_of(one) for one in ray.nodes() if one["NodeID"] == node))
        self.shared = shared
        # Views of the object store: one copy of the data per node, regardless of the number of trials.
        self.dataset = Dataset.opened(ray.get(shared.data))
        self.base = parse_experiment(shared.values)
        self.base_partition = Partition(**ray.get(shared.partition))
        self.clients: RayTransport | None = None
        self._open(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Switch to another trial, so that a process that has started torch serves one trial after another."""
        self._open(new_config)
        return True

    def step(self) -> RoundRecord:
        """Run until the next report; the result contains the new records, each with the number of its expert."""
        run = self.coordinator
        if self.is_spent:
            # Tune waits for the last rounds of others.
            time.sleep(IDLE)
        # Not in `setup`: Tune may set up a second process for a trial that already has one, and drop it.
        run.write_records()
        stopped = all(member.stopped for member in self.members)
        if self.shared.rounds is None:
            self._run_new_rounds(stopped)
            self.position = run.round
        else:
            # One report after the other, also of rounds that have run already: the scheduler decides by each.
            until = self._next_report(self.position)
            self._run_to(until)
            # If the budget ends between two reports, the last one is repeated, which schedulers ignore.
            if run.done or run.round >= until:
                self.position = min(until, run.round)
        records = []
        for member, server in zip(self.members, run.servers, strict=True):
            until = min(self.position, len(server.history))
            records += [{"expert": member.number, **record} for record in server.history[member.reported : until]]
            member.reported = max(member.reported, until)
        # Metrics for schedulers that expect one expert per trial.
        search = self.shared.search
        metrics = report_of(run.servers[0].history[: self.position], search.metric, search.smooth)
        done = stopped or (run.done and self.position == run.round)
        notices, self.notices[:] = list(self.notices), []
        report = {"records": records, "warnings": run.warnings(), "notices": notices, "done": done, COPIES: self.copies}
        report[IS_SPENT] = self.is_spent
        # Ray Tune accepts no report without it, even of a trial that the budget ends before its first evaluation.
        unknown = {search.metric: math.nan} if self.is_spent else {}
        return {**unknown, **metrics, "round": self.position, **report}

    def _run_new_rounds(self, stopped: bool) -> None:
        """Run until the next report, unless rounds that have run are not reported yet."""
        run, begun = self.coordinator, time.monotonic()
        # Rounds that a resumed trial has not reported may be needed to complete a round before the trial's next one.
        behind = self.shared.search.kept is not None and any(
            # An expert of a pack may have been saved in a later round than another one.
            member.reported < min(run.round, len(server.history))
            for member, server in zip(self.members, run.servers, strict=True)
        )
        if self.barrier and behind:
            self.barrier.reports(run.round)
        if not (behind or stopped):
            self._run_to(self._next_report(run.round))
            # The search allows the first rounds of a step; further ones only where all trials have run those before.
            while (
                self.barrier
                and not (run.done or self.is_spent)
                and self.barrier.passes(run.round, begun + self.together)
            ):
                self._run_to(self._next_report(run.round))
        if self.barrier and (run.done or stopped or self.is_spent):
            self.barrier.leave()

    def _next_report(self, round: int) -> int:
        """First round after `round` that is reported."""
        return min(self.members[0].experiment.rounds, round + self.stride - round % self.stride)

    def _run_to(self, until: int) -> None:
        """Run rounds up to a round, as long as there is budget."""
        run, purse = self.coordinator, self.shared.purse
        while run.round < until and not run.done and not self.is_spent:
            records = run.run_round()
            self.is_spent = bool(purse and purse.is_spent(sum(one["participants"] for one in records.values())))

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save this round in the run folders, and write their paths to the checkpoint of Tune."""
        paths = self.coordinator.save()
        folders, reported = zip(*((member.folder, member.reported) for member in self.members), strict=True)
        write_tokens(Path(checkpoint_dir), folders, paths, reported)

    def load_checkpoint(self, checkpoint_dir: Any) -> None:
        """Continue from a checkpoint: this trial's own or, in population based training, another trial's."""
        tokens = json.loads((Path(checkpoint_dir) / TOKENS).read_text())
        run = self.coordinator
        for i, (member, token) in enumerate(zip(self.members, tokens, strict=True)):
            if token["folder"] != str(member.folder.path) and member.folder.record().get(COPIES, 0) < self.copies:
                checkpoint, trained = Path(token["checkpoint"]), len(RunLog(member.folder.metrics).read())
                try:
                    run.load(i, checkpoint)
                except DamagedCheckpoint:
                    # The other trial may have continued, and replaced it with newer checkpoints.
                    if checkpoint.exists() or not run.load_newest(i, checkpoint.parent):
                        raise
                run.save()
                self._become(i, member, trained)
            # A run folder that is ahead of Tune reports the remaining rounds again; duplicates do no harm.
            member.reported = min(token["reported"], len(run.servers[i].history))
        self.position = min(member.reported for member in self.members)

    def _become(self, variant: int, member: TrialRun, trained: int) -> None:
        """Write the configuration and the origin of a model that was copied to the trial's run folder. trained: rounds
        of the model before, with those after its last checkpoint.
        """
        server = self.coordinator.servers[variant]
        member.folder.experiment.write_text(dump_experiment(member.experiment))
        lineage = [*self.lineage[:-1], {**self.lineage[-1], "round": server.round}]
        copied = member.folder.record().get(COPIED, 0) + server.round - trained
        member.folder.update(overrides=member.overrides, **{COPIES: self.copies, COPIED: copied, LINEAGE: lineage})

    def save_run(self) -> None:
        """Save this round in the run folders."""
        self.coordinator.save()

    def cleanup(self) -> None:
        if self.clients is not None:
            self.clients.close()

    def _open(self, config: dict[str, Any]) -> None:
        self.members = [self._member(number, overrides) for number, overrides in members(self.trial_id, config)]
        experiments = [member.experiment for member in self.members]
        self.copies, self.lineage = config.get(COPIES, 0), config.get(LINEAGE, [])
        self.is_spent = bool(self.shared.purse and self.shared.purse.is_spent())
        self.position = (self.shared.rounds or {}).get(self.members[0].number, 0)
        """Last round that was reported."""
        # On a stream, the test samples of each task score every round, evaluated or not.
        scores_all = self.shared.search.kept is not None and experiments[0].task.partition.is_stream
        every = 1 if scores_all else experiments[0].evaluation.every
        self.stride = math.ceil(self.shared.search.report_every / every) * every
        together = self.shared.search.together
        self.together, numbers = together or 0.0, [member.number for member in self.members]
        self.barrier = None if together is None else RoundBarrier(barrier_file(self.shared.folder), numbers)
        partition = self._partition(experiments[0])
        experiments = [experiment.with_solved_noise(len(partition)) for experiment in experiments]
        if hasattr(self, "coordinator"):
            self.coordinator.executor.release_states()
        transport = self._transport(experiments, partition)
        folders = [member.folder.checkpoints for member in self.members]
        self.coordinator: Coordinator = build_coordinator(
            *(experiments, self.dataset, partition, folders, self.shared.claim, transport),
            parts=experiments[0].resources.own_actors,
        )
        self.notices: list[str] = []
        self.coordinator.on_notice = self.notices.append
        for server, member in zip(self.coordinator.servers, self.members, strict=True):
            server.trial = member.number if server.account else None
            server.counts_samples = self.shared.search.records
            server.noise = self._noise(member.overrides)
            server.keeps_predictions = self.shared.search.predictions
        if self.shared.search.kept is not None:
            self.coordinator.on_round = self._keep_round

    def _noise(self, overrides: Overrides) -> ValidationNoise | None:
        """Noise on the validation of a configuration, as the search asks for it."""
        settings = self.shared.search
        if settings.noise is None:
            return None
        return ValidationNoise(
            *(self.base.seed, configuration_key(overrides), settings.metric),
            *(settings.noise.scale, settings.noise.clients),
        )

    def _keep_round(self, variant: int, server: FederatedServer) -> None:
        """Write the file of an expert's round, before the checkpoint after which the round does not run again."""
        kept, record = self.shared.search.kept, server.history[-1]
        if kept is not None and kept.metric in record:
            due = is_due(server.round, kept.models, server.experiment.rounds)
            model = server.scored_model if due else None
            keep_round(self.members[variant].folder.path, server.round, server.predictions, model)

    def _member(self, number: int, overrides: Overrides) -> TrialRun:
        folder = expert_folder(self.shared.folder, number)
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
        stopped = folder.exists and folder.record()["status"] == "stopped"
        experiment = parse_experiment(with_overrides(self.shared.values, overrides))
        return TrialRun(number, folder, experiment, overrides, stopped)

    def _partition(self, experiment: Experiment) -> Partition:
        same = experiment.task.partition == self.base.task.partition and experiment.seed == self.base.seed
        return self.base_partition if same else build_partition(experiment, self.dataset)

    def _transport(self, experiments: list[Experiment], partition: Partition) -> RayTransport | None:
        """Transport to client actors in the trial's placement group; None: this process runs the clients."""
        shared = self.shared
        actors = experiments[0].resources.own_actors
        if actors == 1:
            return None
        partition_ref = shared.partition if partition is self.base_partition else ray.put(vars(partition))
        spec = ActorSpec(experiments, shared.surroundings, shared.data, partition_ref)
        if self.clients is not None:
            self.clients.load_run(spec)
            return self.clients
        group = ray.util.get_current_placement_group()
        assert group is not None, "Tune gives every trial its placement group"
        # The last bundles: the first one, for this process, exists only if it reserves resources.
        bundles = range(group.bundle_count - actors, group.bundle_count)
        places = [PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle) for bundle in bundles]
        here, nodes = ray.get_runtime_context().get_node_id(), placement_group_table(group)["bundles_to_node_id"]
        several_nodes = {here} != {nodes[bundle] for bundle in bundles}
        self.clients = RayTransport(spec, actors, several_nodes, places)
        return self.clients


def write_tokens(target: Path, folders: Sequence[RunFolder], saved: Sequence[Path], reported: Sequence[int]) -> None:
    """Write a checkpoint of Tune: the run folder of each expert, its checkpoint, and the number of reported rounds."""
    tokens = [
        {"folder": str(folder.path), "checkpoint": str(checkpoint), "reported": rounds}
        for folder, checkpoint, rounds in zip(folders, saved, reported, strict=True)
    ]
    (target / TOKENS).write_text(json.dumps(tokens))


def barrier_file(folder: Path) -> Path:
    """File of the barrier of lock-step rounds. folder: folder of the search."""
    return folder / ".barrier"


def trial_resources(resources: Resources, cpus: float = 0.0) -> PlacementGroupFactory:
    """Resources of each trial: a bundle for its process and, with several client actors, one for each of them.

    cpus: total CPUs that a trial reserves when fewer trials are to run at once than would fit.
    """
    actors = resources.own_actors
    one = actor_resources(resources)
    if actors == 1:
        return PlacementGroupFactory([one | {"CPU": max(cpus, resources.cpus_per_actor)}])
    strategy = resources.placement.upper()
    rest = max(0.0, cpus - actors * resources.cpus_per_actor)
    return PlacementGroupFactory([{"CPU": rest} if rest else {}, *[one] * actors], strategy)
