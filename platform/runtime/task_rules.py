"""Rules between an experiment file and its data, its partition, its model and its algorithm."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hedgerow.algorithms.attacks.attack import attackers
from hedgerow.algorithms.core.hyperparameters import Rule
from hedgerow.algorithms.slots.middleware import ComposedAlgorithm
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.schedule_section import FedAsyncSchedule
from hedgerow.platform.data import Dataset, Partition


@dataclass(frozen=True)
class Built:
    """An experiment `e` with what was built for it."""

    e: Experiment
    dataset: Dataset
    partition: Partition
    algorithm: ComposedAlgorithm

    @property
    def name(self) -> str:
        """Name of the algorithm."""
        return self.e.algorithm.name

    @property
    def inner(self) -> Any:
        """Algorithm without its middleware."""
        return self.algorithm.inner

    @property
    def mode(self) -> Any:
        """Layers and buffers of the model that differ in training mode; None if none do."""
        return getattr(self.algorithm.task.module, "train_mode", None)

    @property
    def teacher_mode(self) -> Any:
        """Layers and buffers of the teacher that differ in training mode; None if none do."""
        return getattr(self.algorithm.task.teacher, "train_mode", None)

    @property
    def is_static(self) -> bool:
        """Whether the model normalises by statistics of clients' samples."""
        return bool(self.algorithm.task.is_static)

    @property
    def takes_all_clients(self) -> bool:
        """Whether the algorithm needs every client in every round."""
        return "all_clients" in self.inner.needs

    @property
    def is_scored_personally(self) -> bool:
        """Whether each client has its own model, which is scored on the client's samples."""
        return bool(self.inner.is_personal and self.algorithm.task.is_scored)

    @property
    def sends_statistics(self) -> bool:
        """Whether statistics of batch norm leave the clients."""
        averaged = self.mode is not None and self.mode.policy == "average" and self.mode.buffers
        return self.is_static or not all(self.inner.keeps_buffer(name) for name in averaged or ())

    @property
    def image_sides(self) -> tuple[int, ...] | None:
        """Height and width of the samples; None if they are not images."""
        data = self.dataset
        images = data.x_train.dtype == np.uint8 and not data.is_tokens and len(data.sample_shape) == 3
        return data.sample_shape[1:] if images else None


def refuse(built: Built) -> None:
    """Raise UserError for the first rule that the experiment breaks."""
    for rule in TASK_RULES:
        if objection := rule.objection(built):
            raise UserError(objection)


def schedule_objection(experiment: Experiment, algorithm: ComposedAlgorithm, population: int) -> str | None:
    """Returns one sentence on why an experiment cannot have an asynchronous schedule; None if it can."""
    schedule, name, simulation = experiment.schedule, experiment.algorithm.name, experiment.simulation
    assert schedule is not None
    hyper = algorithm.hyper
    transforms = getattr(hyper, "transforms", ())
    if not algorithm.inner.supports_async:
        return f"schedule: a round of {name} is not one exchange that only averages updates; remove it"
    if not experiment.aggregation.rule.is_mean:
        return "schedule: it weights updates by their staleness, which only a mean does; set aggregation.rule to mean"
    attack = getattr(hyper, "attack", None)
    if attack is not None and (attack.colludes or isinstance(schedule, FedAsyncSchedule)):
        return f"simulation.attack.kind: {schedule.kind} has no rounds in which {attack.kind} could act; choose another"
    if isinstance(schedule, FedAsyncSchedule) and transforms:
        return "transforms: fedasync mixes models, not updates; remove them, or set schedule.kind to fedbuff"
    if experiment.fedex:
        return "schedule: FedEx compares the clients of a round, which start from different versions; remove `fedex`"
    if experiment.evaluation.follows:
        return "evaluation.model: with a schedule the server's model is evaluated; set it to server"
    if algorithm.init_client():
        return f"schedule: clients of {name} keep states between rounds with these settings; remove it"
    if simulation and simulation.deadline is not None:
        return "simulation.deadline: an asynchronous server waits for no client; remove it"
    if simulation and simulation.over_selection != 1:
        return "simulation.over_selection: an asynchronous server uses the update of every client; remove it"
    if (clients := experiment.concurrency(population)) > population:
        return f"schedule.concurrency: {clients} clients at work exceed the population of {population}; lower it"
    return None


OWN_MODELS = "with {name} every client has its own model, which is scored on the client's held-out samples"

TRAIN_MODE_RULES = (
    Rule(
        lambda b: b.e.task.teacher and b.e.task.teacher.model is not None and b.teacher_mode,
        "task.teacher.model: a teacher with batch norm or dropout is not trained here; train it as a run of its own, "
        "and set task.teacher.run to its folder",
    ),
    Rule(
        lambda b: b.teacher_mode and next((repr(str(name)) for name in b.teacher_mode.attributes), None),
        "task.teacher: a call of the teacher changes its attribute {found}, on which the next one would depend; do not "
        "change it in forward",
    ),
    Rule(
        lambda b: b.mode and b.e.task.problem,
        "task.problem: it does not support a model with {mode.layers} in training; choose another model",
    ),
    Rule(
        lambda b: b.mode and b.mode.kept and b.e.evaluation.follows,
        "evaluation.model: averages of clients' latest models have no {mode.layers}; set it to server",
    ),
    Rule(
        lambda b: b.mode and b.e.fedex and b.mode.buffers and b.mode.policy != "average",
        "task.model.buffers: FedEx scores each client's model, with its buffers; set it to average",
    ),
    Rule(
        lambda b: b.mode and b.e.engine.compiling,
        "engine.{found}: a model with {mode.layers} is not compiled; set it to false",
    ),
)

AUGMENTATION_RULES = (
    Rule(lambda b: b.e.task.augment and not b.image_sides, "task.augment: {dataset.name} has no images; remove it"),
    Rule(
        lambda b: b.e.task.augment and max(b.e.task.augment.cutout, b.e.task.augment.crop) > max(b.image_sides),
        "task.augment: `crop` or `cutout` exceeds the image size {image_sides[0]}x{image_sides[1]}; lower it",
    ),
    Rule(
        lambda b: b.e.task.augment and b.e.task.augment.auto and b.dataset.x_train.max() <= 127,
        "task.augment.auto: the policy needs 8-bit images, and {dataset.name} has fewer bits; remove it",
    ),
    Rule(
        lambda b: b.e.task.augment and not any(spec.views for spec in getattr(b.e.algorithm, "batches", {}).values()),
        "task.augment: {name} does not augment samples; remove it",
    ),
)

PRIVACY_RULES = (
    Rule(
        lambda b: b.e.privacy and not b.inner.supports_privacy,
        "privacy: a round of {name} is not one update of each client, which a clip and noise can cover; remove it",
    ),
    Rule(
        lambda b: b.e.privacy and any(one.is_clip or one.adds_server_noise for one in b.e.transforms),
        "transforms: `privacy` clips and adds noise itself; remove the clip and the noise",
    ),
    Rule(
        lambda b: b.e.privacy and b.e.schedule,
        "schedule: privacy is accounted for cohorts drawn at random; remove one of the two",
    ),
    Rule(
        lambda b: b.e.privacy and b.e.simulation,
        "simulation: privacy is accounted for cohorts that take part in full; remove one of the two",
    ),
    Rule(lambda b: b.e.privacy and b.e.fedex, "fedex: scores of clients have no noise; remove one of the two"),
    Rule(
        lambda b: b.e.privacy and b.e.evaluation.follows,
        "evaluation.model: clients' own models have no noise; set it to server",
    ),
    Rule(
        lambda b: b.e.privacy and b.sends_statistics,
        "task.model: statistics of batch norm would be sent without noise; choose a model without it",
    ),
)

COMPOSITION_RULES = (
    Rule(lambda b: b.algorithm.incompatibility(), "{found}"),
    Rule(lambda b: b.e.aggregation.rule.incompatibility(b.e.cohort_size(len(b.partition))), "aggregation.rule.{found}"),
    Rule(lambda b: b.e.schedule and schedule_objection(b.e, b.algorithm, len(b.partition)), "{found}"),
)

CLIENT_RULES = (
    Rule(
        lambda b: b.takes_all_clients and b.e.cohort_size(len(b.partition)) < len(b.partition),
        "clients_per_round: {name} needs all clients in every round; set it to all",
    ),
    Rule(
        lambda b: b.e.simulation and b.takes_all_clients,
        "simulation: {name} needs all clients in every round; remove it",
    ),
    Rule(
        lambda b: b.e.simulation and b.inner.trains_on == "pool",
        "simulation: {name} trains in one place, without clients; remove it",
    ),
    Rule(
        lambda b: (
            b.e.slots.attack
            and b.e.slots.attack.fraction
            and not attackers(b.e.seed, len(b.partition), b.e.slots.attack.fraction).any()
            and len(b.partition)
        ),
        "simulation.attack.fraction: {e.slots.attack.fraction:g} of {found} clients is no client; raise it",
    ),
)

EVALUATION_RULES = (
    Rule(
        lambda b: b.is_static and not b.e.evaluation.clients,
        "evaluation.clients: {e.task.model.name} is scored with normalisation statistics of clients' samples; set it "
        "above 0",
    ),
    Rule(
        lambda b: b.e.evaluation.target_metric.endswith(("_highest", "_lowest")) and not b.inner.is_personal,
        "evaluation.target_metric: {e.evaluation.target_metric} needs personal models, and {name} has none; set it to "
        "client_accuracy",
    ),
    Rule(
        lambda b: b.is_static and b.e.evaluation.follows,
        "evaluation.model: {e.task.model.name} normalises by statistics of clients' samples, which are measured for a "
        "single model; set it to server",
    ),
    Rule(
        lambda b: b.is_scored_personally and not b.partition.holds_out,
        f"task.partition.client_test_fraction: {OWN_MODELS}; raise it until every client has some",
    ),
    Rule(
        lambda b: b.is_scored_personally and not b.e.evaluation.clients,
        f"evaluation.clients: {OWN_MODELS}; set it above 0",
    ),
    Rule(
        lambda b: b.is_scored_personally and b.is_static,
        "task.model: {e.task.model.name} normalises by statistics of all clients' samples, and "
        f"{OWN_MODELS}; choose another model",
    ),
    Rule(
        lambda b: "validation" in b.inner.needs and not b.partition.splits()["validation"].sizes.all(),
        "task.partition.upper_level_fraction: {name} needs samples of every client for its upper level, or as the "
        "server's clean samples; raise it",
    ),
    Rule(
        lambda b: b.e.task.validation and not b.algorithm.task.is_scored,
        "task.validation: the model of this task has no accuracy or loss on samples; remove it",
    ),
    Rule(
        lambda b: b.e.task.validation and b.e.task.validation.is_at_server and b.inner.is_personal,
        "task.validation.from: with {name} every client has its own model, which the server's samples cannot score; "
        "set it to clients",
    ),
    Rule(
        lambda b: (
            getattr(b.e.task.partition, "upper_level_fraction", 0.0)
            and not ("validation" in b.inner.needs or b.e.task.problem)
        ),
        "task.partition.upper_level_fraction: {name} does not use it; remove it, or set `task.validation` to hold "
        "back samples for choosing hyperparameters",
    ),
    Rule(
        lambda b: len(b.partition.rows("public")) < b.inner.public_samples and str(len(b.partition.rows("public"))),
        "task.public: {name} needs public samples, at least {inner.public_samples}, and there are {found}; set "
        "`samples: {inner.public_samples}` or more",
    ),
)

TASK_RULES = (
    *TRAIN_MODE_RULES,
    Rule(
        lambda b: b.e.task.model.init and getattr(b.e.algorithm, "starts", 1) > 1,
        "task.model.init: models trained side by side would all be the same; set algorithm.starts to 1",
    ),
    *AUGMENTATION_RULES,
    *PRIVACY_RULES,
    *COMPOSITION_RULES,
    *CLIENT_RULES,
    *EVALUATION_RULES,
)
