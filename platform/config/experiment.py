"""Schema of experiment files: every key with its type, bounds and default."""

import math
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    create_model,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from hedgerow.algorithms.core.hyperparameters import Rule
from hedgerow.algorithms.core.measures import Scoring
from hedgerow.algorithms.slots.fedex import FedEx
from hedgerow.algorithms.slots.slots import Slots, SlottedHyper
from hedgerow.platform.common.section import Section
from hedgerow.platform.common.servers import has_credentials
from hedgerow.platform.config.engine_section import EngineConfig
from hedgerow.platform.config.experiment_rules import EXPERIMENT_RULES
from hedgerow.platform.config.logger_section import LoggerChoice
from hedgerow.platform.config.measures_section import (
    LossChoice,
    MetricChoice,
    main_metric_of,
    metric_choices,
    scoring,
    target_objection,
)
from hedgerow.platform.config.model_selection import Patience, selection_mistake, uses_test_samples
from hedgerow.platform.config.privacy_section import Privacy
from hedgerow.platform.config.registries import (
    AlgorithmConfig,
    DataConfig,
    ModelConfig,
    ObjectiveConfig,
    PartitionConfig,
    ProblemConfig,
    TransformConfig,
)
from hedgerow.platform.config.resources import Device, Resources
from hedgerow.platform.config.schedule_section import Schedule
from hedgerow.platform.config.slots_section import AggregationConfig
from hedgerow.platform.config.system_heterogeneity import Simulation
from hedgerow.platform.config.teacher_section import Teacher
from hedgerow.platform.data.augmentation import Augmentation
from hedgerow.platform.privacy.accounting import PrivacyAccount
from hedgerow.platform.storage.remote import is_uri, uri_objection


class Public(Section):
    """Public samples without labels, which the server and all clients have."""

    rules = (
        Rule(
            lambda public: public.samples is None and public.data is None,
            "`samples` and `data` are both missing; give `samples`, the number of training samples to hold back, "
            "or `data`, another data set",
        ),
    )

    samples: int | None = Field(None, ge=1, description="number of public samples; null: all of `data`")
    data: DataConfig | None = Field(
        None,
        description="another data set with samples of the same shape, normalised like those of the task; null: the "
        "samples are held back from the task's training samples",
    )


class _Validation(Section):
    fraction: float = Field(0.1, gt=0, lt=1, description="share of the training samples to hold back")

    @property
    def is_at_server(self) -> bool:
        """Whether the server has the samples, instead of the clients."""
        return bool(getattr(self, "from") == "server")


if TYPE_CHECKING:
    Validation = _Validation
else:
    # A class body cannot define a field with the name of a keyword.
    Validation = create_model(
        "Validation",
        __base__=_Validation,
        __module__=__name__,
        __doc__="Training samples that are held back to choose hyperparameters, scored in every evaluated round.",
        **{
            "from": (
                Literal["server", "clients"],
                Field(
                    "clients",
                    description="server: a random pool of training samples, held back before the partition is drawn; "
                    "clients: a share of each client's training samples, scored together",
                ),
            )
        },
    )


class TaskConfig(Section):
    """The learning task: data, partition, model, loss and metrics, bilevel problem, public and validation samples."""

    rules = (
        Rule(
            lambda task: next((label for label in task.labels if task.labels.count(label) > 1), None),
            "`metrics` has two metrics of the name {found}; rename one of the functions",
        ),
        Rule(
            lambda task: task.public and task.partition.deals_test_samples,
            "`partition` {partition.kind} also deals samples of the test set, which excludes public samples; "
            "remove `public`, or choose another partition",
        ),
    )

    data: DataConfig = Field(description="data set")
    partition: PartitionConfig = Field(description="partition of the samples over the clients")
    model: ModelConfig = Field(description="model to train")
    loss: LossChoice = Field(
        LossChoice(),
        description="loss that is minimised, by name or dotted path: cross_entropy of classes, mse or mae of numbers, "
        "bce of several labels, next_token of a token at every position",
    )
    metrics: list[MetricChoice] | None = Field(
        None,
        description="metrics of the evaluations, by name or dotted path, beginning with the main one: test_NAME, "
        "client_NAME, validation_NAME; null: the usual ones of the loss, and none for a loss of your own",
    )
    problem: ProblemConfig | None = Field(
        None, description="bilevel problem, for bilevel algorithms; null: plain classification"
    )
    public: Public | None = Field(
        None, description="samples without labels that the server and all clients have; null: none"
    )
    validation: Validation | None = Field(
        None,
        description="training samples held back to choose hyperparameters: validation_loss and the metrics, such as "
        "validation_accuracy; null: none",
    )
    augment: Augmentation | None = Field(None, description="augmentation of images in local training; null: none")
    teacher: Teacher | None = Field(None, description="teacher model that other models learn from; null: none")

    @property
    def labels(self) -> list[str]:
        """Names of the metrics that the file chooses."""
        return [choice.label for choice in self.metrics or []]

    @property
    def scoring(self) -> Scoring:
        """The loss and the metrics as functions. Imports the user's own. Raises UserError."""
        return scoring(self.loss, self.metrics)

    @cached_property
    def modes(self) -> dict[str, str]:
        """Whether each metric is to be minimised ("min") or maximised ("max"), by name, the main one first."""
        modes = {choice.label: str(choice.mode) for choice in metric_choices(self.loss, self.metrics)}
        return modes | {"loss": "min"}

    @property
    def main_metric(self) -> str:
        """Name of the metric that stands for the result, such as accuracy; "loss" if there are no metrics."""
        return next(iter(self.modes))


class Efficiency(Section):
    """Number of samples of a new task that the adapted model needs (thesis, A.1.4 and figure A.20)."""

    rules = (
        Rule(
            lambda efficiency: efficiency.points[0] < 0 or sorted(set(efficiency.points)) != efficiency.points,
            "`points` must be 0 or more and in ascending order",
        ),
    )

    threshold: float = Field(gt=0, lt=1, description="test accuracy to reach")
    points: list[int] = Field(min_length=1, description="numbers of samples to try, in ascending order; 0: no samples")


class Evaluation(Section):
    """Evaluation of models: metrics, targets and frequency."""

    rules = (
        Rule(
            lambda e: "accuracy" in e.target_metric and e.target_outside(1.0),
            "target {found} is not a test accuracy between 0 and 1",
        ),
        Rule(
            lambda e: "accuracy" not in e.target_metric and e.target_outside(math.inf),
            "target {found} is not a loss above 0",
        ),
        Rule(
            lambda e: e.target_metric.startswith("client_") and not e.clients,
            "`target_metric: {target_metric}` needs `clients` above 0; raise it",
        ),
        Rule(
            lambda e: e.stop and not e.targets,
            "`stop` needs `targets`: the run ends when all are reached; give some, or remove it",
        ),
        Rule(
            lambda e: e.test == "end" and e.targets and uses_test_samples(e.target_metric),
            "`targets` need {target_metric} in every evaluation, and with `test: end` only the last one has it; set "
            "`test: every`, or `target_metric: validation_accuracy`",
        ),
    )

    every: int = Field(1, ge=1, description="evaluate the server's model every this many rounds, and after the last")
    clients: int = Field(
        100, ge=0, description="evaluate it also on the samples of up to this many clients (the same ones each time)"
    )
    test: Literal["every", "end"] = Field(
        "every",
        description="evaluations that score test samples and the clients' own; every: all of them; end: the last one, "
        "which is the default in searches",
    )
    model: Literal["server", "clients"] = Field(
        "server",
        description="model to evaluate; server: the server's; clients: the average of all clients' latest own models, "
        "with server_test_accuracy and server_test_loss of the server's model in addition, unless models are personal",
    )
    targets: list[float] = Field(
        [], description="values of `target_metric`: report the rounds and transmissions until each is reached"
    )
    target_metric: str = Field(
        "test_accuracy",
        description="metric of the targets: test_accuracy, between 0 and 1, or the main one of `task.metrics`; "
        "client_accuracy: mean accuracy of the clients on their own samples, without clients that have none, or, if "
        "models are personal, "
        "client_accuracy_highest or client_accuracy_lowest; client_loss: mean of the clients' mean losses on their own "
        "samples, without any penalty; simple_test_accuracy: of the simple network next to the model; "
        "validation_accuracy or validation_loss, on the samples of `task.validation`",
    )
    stop: bool = Field(False, description="end the run when all targets are reached")
    patience: Patience | None = Field(
        None, description="end the run when a metric no longer improves; null: run all rounds"
    )
    allow_test_selection: bool = Field(
        False,
        description="whether metrics of test samples, or of the clients' evaluation, may decide in `patience` and "
        "`checkpoints.best`; results then say that test data selected them",
    )
    confusion_matrix: bool = Field(
        False,
        description="write the confusion matrix of the last evaluation, confusion_matrix.csv and a figure; for classes",
    )
    efficiency: Efficiency | None = Field(
        None, description="number of samples needed for each task of a stream; null: not measured"
    )

    def target_outside(self, limit: float) -> str | None:
        """First target that is not between 0 and `limit`; None if all are.

        A client can classify all of its samples correctly, so that 1 is a target of the clients' accuracy.
        """
        perfect = 1.0 if self.target_metric.startswith("client_accuracy") else None
        outside = (target for target in self.targets if not 0 < target < limit and target != perfect)
        return next((f"{target:g}" for target in outside), None)

    @property
    def follows(self) -> bool:
        """Whether each client's latest own model is kept, to average them."""
        return self.model == "clients"

    @property
    def accuracies(self) -> list[float]:
        """Targets of the accuracy whose curve figures show, which they show as lines; empty for other metrics."""
        drawn = "test_accuracy" if self.test == "every" else "validation_accuracy"
        return self.targets if self.target_metric == drawn else []


class Checkpoints(Section):
    """Checkpoints of a run: frequency, number and storage."""

    every: int = Field(10, ge=0, description="save every this many rounds, and after the last; 0: only after the last")
    keep: int = Field(2, ge=1, description="number of checkpoints to keep")
    best: str | None = Field(
        None,
        description="metric of evaluated rounds, such as validation_accuracy: save every round that improves it, and "
        "keep the best one in addition to `keep`; null: none",
    )
    storage: str | None = Field(
        None, description="URI of a folder for a copy of the run folder, updated after every checkpoint; null: no copy"
    )

    @field_validator("storage")
    @classmethod
    def _is_a_uri(cls, storage: str | None) -> str | None:
        if storage is not None and (objection := uri_objection(storage)):
            raise ValueError(objection)
        return storage


class Tracking(Section):
    """Recording of the run in MLflow."""

    enabled: bool = Field(True, description="whether MLflow records the run; the run folder has everything in any case")
    uri: str | None = Field(None, description="MLflow tracking URI; null: an SQLite store, hedgerow.db in `output`")
    experiment: str = Field("hedgerow", min_length=1, description="name of the MLflow experiment")
    also: list[LoggerChoice] = Field(
        [],
        description="further loggers: tensorboard, wandb, or your own by their dotted paths; a name, or "
        "{name: ..., args: {...}}",
    )
    patience: float = Field(
        30.0, gt=0, description="seconds to wait for MLflow at the end of a run; `hedgerow push` sends the rest later"
    )

    @field_validator("uri")
    @classmethod
    def _has_no_credentials(cls, uri: str | None) -> str | None:
        if uri is not None and has_credentials(uri):
            raise ValueError(
                "a URI with credentials would be written into every record of the run; set MLFLOW_TRACKING_USERNAME "
                "and MLFLOW_TRACKING_PASSWORD, or write the URI as ${env:NAME}, which is recorded by its name"
            )
        return uri


class Experiment(Section):
    """One experiment: task, algorithm, rounds, resources, tracking."""

    rules = EXPERIMENT_RULES
    rivals = (("seed", "seeds"),)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="name of the run and prefix of its folder")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of all random numbers")
    seeds: list[Annotated[int, Field(ge=0, lt=2**63)]] | None = Field(
        None, min_length=1, description="in place of `seed`: run the experiment once for each of these; null: one run"
    )
    rounds: int = Field(ge=1, description="number of communication rounds")
    clients_per_round: Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, lt=1)] | Literal["all"] = Field(
        0.1, description="clients that take part in a round: their number, a fraction of all clients below 1, or all"
    )
    task: TaskConfig
    algorithm: AlgorithmConfig = Field(description="training algorithm and its settings")
    aggregation: AggregationConfig = AggregationConfig()
    transforms: list[TransformConfig] = Field(
        [], description="transforms of a client's update before it is sent, in this order"
    )
    objective: ObjectiveConfig | None = Field(
        None, description="objective that clients minimise in place of the task's loss; null: the task's loss"
    )
    fedex: FedEx | None = Field(
        None,
        description="hyperparameters that each client draws in each round, as a search of kind fedex sets them; null: "
        "the same for all clients",
    )
    simulation: Simulation | None = Field(
        None,
        description="clients that are slow, unavailable, drop out during a round, or attack; null: all are "
        "honest and take part in time",
    )
    schedule: Schedule | None = Field(
        None,
        description="asynchronous rounds on the simulated clock of `simulation`; null: the server waits for the cohort "
        "of each round",
    )
    privacy: Privacy | None = Field(
        None, description="differential privacy of clients: clipped updates, noise, random cohorts; null: none"
    )
    evaluation: Evaluation = Evaluation()
    resources: Resources = Resources()
    engine: EngineConfig = EngineConfig()
    checkpoints: Checkpoints = Checkpoints()
    tracking: Tracking = Tracking()
    output: str = Field("runs", min_length=1, description="folder of the runs, created if missing")

    @model_validator(mode="before")
    @classmethod
    def _begins_with_its_first_seed(cls, values: Any) -> Any:
        seeds = values.get("seeds") if isinstance(values, dict) else None
        if not seeds or not isinstance(seeds, list):
            return values
        if values.get("seed") is not None:
            raise ValueError("give either `seed`, for one run, or `seeds`, for one run with each of them")
        if len(seeds) > len(set(map(str, seeds))):
            raise ValueError("`seeds` has a seed twice; remove one")
        return values | {"seed": seeds[0]}

    @model_serializer(mode="wrap")
    def _seeds_or_seed(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        if self.seeds:
            values.pop("seed", None)
        return values

    @field_validator("clients_per_round", mode="before")
    @classmethod
    def _is_a_number_or_a_fraction(cls, value: Any) -> Any:
        # 1.0 may mean one client or all of them.
        is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if value == "all" or is_number or (isinstance(value, float) and 0 < value < 1):
            return value
        raise PydanticCustomError("clients", "Input should be a number of clients, a fraction between 0 and 1, or all")

    @field_validator("output")
    @classmethod
    def _is_a_folder(cls, output: str) -> str:
        if is_uri(output):
            raise ValueError(f"{output!r} is a URI, but runs need a local folder; give it as `checkpoints.storage`")
        return output

    @model_validator(mode="before")
    @classmethod
    def _targets_are_of_the_main_metric(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        task, evaluation = values.get("task"), values.get("evaluation")
        main = main_metric_of(task) if isinstance(task, dict) else "accuracy"
        if main == "accuracy" or not (evaluation is None or isinstance(evaluation, dict)):
            return values
        return {**values, "evaluation": {"target_metric": f"test_{main}", **(evaluation or {})}}

    @model_validator(mode="after")
    def _targets_are_of_a_known_metric(self) -> Self:
        evaluation = self.evaluation
        if objection := target_objection(evaluation.target_metric, self.task.modes, bool(evaluation.targets)):
            raise ValueError(objection)
        return self

    @model_validator(mode="after")
    def _metrics_may_select(self) -> Self:
        has_validation, scores_clients = self.task.validation is not None, self.evaluation.clients > 0
        allowed, modes = self.evaluation.allow_test_selection, self.task.modes
        for key, metric in self.selecting.items():
            if self.evaluation.test == "end" and uses_test_samples(metric):
                raise ValueError(
                    f"`{key}`: with `evaluation.test: end`, only the last evaluation has {metric}; set it to every"
                )
            if mistake := selection_mistake(key, metric, modes, has_validation, scores_clients, allowed):
                raise ValueError(mistake)
        return self

    def each_seed(self) -> list[Self]:
        """One experiment for each of `seeds`; this one alone if there are none."""
        return [self.model_copy(update={"seed": seed, "seeds": None}) for seed in self.seeds or []] or [self]

    @property
    def is_stream(self) -> bool:
        """Whether each round is a task of its own, which is seen once."""
        return self.task.partition.is_stream

    @property
    def selecting(self) -> dict[str, str]:
        """Metrics that decide which round is the best one, or end the run, by their keys in the file."""
        patience = self.evaluation.patience
        metrics = {
            "checkpoints.best": self.checkpoints.best,
            "evaluation.patience.metric": patience and patience.metric,
        }
        return {key: metric for key, metric in metrics.items() if metric}

    @property
    def early_end(self) -> str | None:
        """Key by which the run may end before its last round; None: it does not. Raises UserError."""
        evaluation = self.evaluation
        if evaluation.stop or evaluation.patience:
            return f"evaluation.{'stop' if evaluation.stop else 'patience'}"
        stopping = (one.name for one in self.tracking.also if one.has_hook("stop"))
        return next((f"tracking.also ({name})" for name in stopping), None)

    @property
    def selects_on_test(self) -> bool:
        """Whether test samples decide which round is the best one, or end the run."""
        return any(uses_test_samples(metric) for metric in self.selecting.values())

    @property
    def no_vmap(self) -> str | None:
        """Reason why the settings of the algorithm rule out clients that are trained at once; None if they do not."""
        reason: str | None = getattr(self.algorithm, "no_vmap", None)
        return reason

    @property
    def slots(self) -> Slots:
        """Slots around the algorithm: aggregation, transforms, objective and attack."""
        return Slots.model_construct(
            aggregation=self.aggregation,
            transforms=self.transforms,
            objective=self.objective,
            attack=self.simulation.attack if self.simulation else None,
        )

    @property
    def hyper(self) -> SlottedHyper:
        """Hyperparameters that may differ between the trials of a pack, by the dotted paths of the file."""
        return SlottedHyper.of(self.algorithm, self.slots)

    def private_slots(self, population: int) -> Slots:
        """Slots, with the clip and the noise of `privacy` after the transforms. Raises UserError."""
        account = self.privacy_account(population)
        if self.privacy is None or account is None:
            return self.slots
        own = self.privacy.transforms(account.noise_multiplier, self.cohort_size(population))
        return self.slots.model_copy(update={"transforms": [*self.transforms, *own]})

    def privacy_account(self, population: int) -> PrivacyAccount | None:
        """Accounting of the run; None without `privacy`. Raises UserError."""
        if self.privacy is None:
            return None
        return self.privacy.account(self.cohort_size(population), population, self.rounds)

    def with_device(self, device: Device) -> Self:
        """Returns the experiment with the chosen device of its clients."""
        return self.model_copy(update={"resources": self.resources.with_device(device)})

    def with_solved_noise(self, population: int) -> Self:
        """Returns the experiment with the noise that `privacy.target_epsilon` needs in its place, so that the other
        processes of a run need not solve for it. Raises UserError.
        """
        account = self.privacy_account(population)
        if self.privacy is None or account is None:
            return self
        privacy = self.privacy.model_copy(update={"noise_multiplier": account.noise_multiplier, "target_epsilon": None})
        return self.model_copy(update={"privacy": privacy})

    def cohort_size(self, population: int) -> int:
        """Number of the `population` clients that take part in a round, at least one. In a stream all tasks do, since
        they are evaluated together. With a schedule, number of updates of a server step.
        """
        return self.schedule.updates if self.schedule else self._clients_per_round(population)

    def concurrency(self, population: int) -> int:
        """Number of clients that work at any time, with an asynchronous schedule."""
        own = self.schedule.concurrency if self.schedule else None
        return own or self._clients_per_round(population)

    def _clients_per_round(self, population: int) -> int:
        count = self.clients_per_round
        if count == "all" or self.task.partition.is_stream:
            return population
        return count if isinstance(count, int) else max(1, round(count * population))

    def sample_size(self, population: int) -> int:
        """Number of clients sampled for a round; more than the cohort if the simulation loses some."""
        size = self.cohort_size(population)
        return self.simulation.selected(size) if self.simulation else size
