"""Schema of experiment files: every key with its type, bounds and default."""

import math
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import (
    Field,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    create_model,
    field_validator,
    model_serializer,
    model_validator,
)

from hedgerow.algorithms.core.hyperparameters import HyperParameters
from hedgerow.algorithms.core.measures import Scoring
from hedgerow.algorithms.slots.fedex import FedEx
from hedgerow.algorithms.slots.slots import Slots, SlottedHyper
from hedgerow.platform.common.section import Section
from hedgerow.platform.common.servers import has_credentials
from hedgerow.platform.config.checkpoints_section import Checkpoints
from hedgerow.platform.config.engine_section import EngineConfig
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
from hedgerow.platform.config.problem_section import QuadraticProblem
from hedgerow.platform.config.registries import (
    DataConfig,
    ModelConfig,
    ObjectiveConfig,
    PartitionConfig,
    ProblemConfig,
    TransformConfig,
)
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.config.schedule_section import Schedule
from hedgerow.platform.config.slots_section import AggregationConfig
from hedgerow.platform.config.system_heterogeneity import Simulation
from hedgerow.platform.config.teacher_section import Teacher
from hedgerow.platform.data.augmentation import Augmentation
from hedgerow.platform.data.partitions.task_stream import Stream
from hedgerow.platform.data.sources.quadratic_data import QuadraticData
from hedgerow.platform.models.quadratic_xy import QuadraticXY
from hedgerow.platform.privacy.accounting import PrivacyAccount
from hedgerow.platform.storage.remote import is_uri


class Public(Section):
    """Public samples without labels, which the server and all clients have."""

    samples: int | None = Field(None, ge=1, description="number of public samples; null: all of `data`")
    data: DataConfig | None = Field(
        None,
        description="another data set with samples of the same shape, normalised like those of the task; null: the "
        "samples are held back from the task's training samples",
    )

    @model_validator(mode="after")
    def _not_everything(self) -> Self:
        if self.samples is None and self.data is None:
            raise ValueError("give `samples`, the number of training samples to hold back, or `data`, another data set")
        return self


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

    @model_validator(mode="after")
    def _metrics_have_different_names(self) -> Self:
        labels = [choice.label for choice in self.metrics or []]
        if twice := [label for label in labels if labels.count(label) > 1]:
            raise ValueError(f"`metrics` has two metrics of the name {twice[0]}; rename one of the functions")
        return self

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

    @model_validator(mode="after")
    def _excludes_public(self) -> Self:
        if self.public and self.partition.deals_test_samples:
            raise ValueError(
                f"`partition` {self.partition.kind} also deals samples of the test set, which excludes public samples; "
                "remove `public`, or choose another partition"
            )
        return self


class Efficiency(Section):
    """Number of samples of a new task that the adapted model needs (thesis, A.1.4 and figure A.20)."""

    threshold: float = Field(gt=0, lt=1, description="test accuracy to reach")
    points: list[int] = Field(min_length=1, description="numbers of samples to try, in ascending order; 0: no samples")

    @model_validator(mode="after")
    def _points_ascend(self) -> Self:
        if self.points[0] < 0 or sorted(set(self.points)) != self.points:
            raise ValueError("`points` must be 0 or more and in ascending order")
        return self


class Evaluation(Section):
    """Evaluation of models: metrics, targets and frequency."""

    every: int = Field(1, ge=1, description="evaluate the server's model every this many rounds, and after the last")
    clients: int = Field(
        100, ge=0, description="evaluate it also on the samples of up to this many clients (the same ones each time)"
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
    efficiency: Efficiency | None = Field(
        None, description="number of samples needed for each task of a stream; null: not measured"
    )

    @model_validator(mode="after")
    def _targets_fit(self) -> Self:
        accuracies = "accuracy" in self.target_metric
        for target in self.targets:
            # A client can classify all of its samples correctly.
            perfect = target == 1 and self.target_metric.startswith("client_accuracy")
            if not 0 < target < (1 if accuracies else math.inf) and not perfect:
                bounds = "a test accuracy between 0 and 1" if accuracies else "a loss above 0"
                raise ValueError(f"target {target:g} is not {bounds}")
        if self.target_metric.startswith("client_") and not self.clients:
            raise ValueError(f"`target_metric: {self.target_metric}` needs `clients` above 0")
        if self.stop and not self.targets:
            raise ValueError("`stop` needs `targets`: the run ends when all are reached")
        return self

    @property
    def follows(self) -> bool:
        """Whether each client's latest own model is kept, to average them."""
        return self.model == "clients"

    @property
    def accuracies(self) -> list[float]:
        """Targets that are test accuracies, which the figures show as lines; empty for other metrics."""
        return self.targets if self.target_metric == "test_accuracy" else []


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


H = TypeVar("H", bound=HyperParameters)


class Experiment(Section, Generic[H]):
    """One experiment: task, algorithm, rounds, resources, tracking."""

    alternatives = (("participation", "clients_per_round"),)
    rivals = (("seed", "seeds"),)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="name of the run and prefix of its folder")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of all random numbers")
    seeds: list[Annotated[int, Field(ge=0, lt=2**63)]] | None = Field(
        None, min_length=1, description="in place of `seed`: run the experiment once for each of these; null: one run"
    )
    rounds: int = Field(ge=1, description="number of communication rounds")
    participation: float | None = Field(
        0.1, gt=0, le=1, description="fraction of the clients that take part in a round; null: use clients_per_round"
    )
    clients_per_round: int | None = Field(None, ge=1, description="clients in a round, in place of `participation`")
    task: TaskConfig
    algorithm: SerializeAsAny[H]
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
    def _streams_last(self) -> Self:
        stream = self.task.partition if isinstance(self.task.partition, Stream) else None
        if stream and stream.tasks < self.rounds:
            raise ValueError(
                f"`rounds: {self.rounds}` is more than the {stream.tasks} tasks of the stream; lower it or raise "
                "task.partition.tasks"
            )
        efficiency = self.evaluation.efficiency
        if efficiency and not stream:
            raise ValueError("`evaluation.efficiency` applies only to the tasks of a stream; remove it")
        if efficiency and stream and efficiency.points[-1] > stream.train:
            raise ValueError(
                f"`evaluation.efficiency.points` goes up to {efficiency.points[-1]}, but a task has {stream.train} "
                "training samples; lower it"
            )
        if stream and (self.task.augment or self.task.teacher):
            raise ValueError("`task.augment` and `task.teacher` are not supported for a stream; remove them")
        if stream and (self.task.loss != LossChoice() or self.task.metrics is not None):
            raise ValueError("`task.loss` and `task.metrics` are not supported for a stream; remove them")
        if stream and self.simulation:
            raise ValueError("`simulation` needs clients, and a stream has none; remove it")
        if stream and self.task.public:
            raise ValueError("`task.public` is not supported for a stream; remove it")
        if stream and self.task.validation:
            raise ValueError(
                "`task.validation` is not supported for a stream, whose tasks are scored on their test samples before "
                "they are learnt; remove it"
            )
        if stream and self.evaluation.targets:
            raise ValueError(
                "`evaluation.targets` is not supported for a stream, whose rounds are different tasks; remove it"
            )
        return self

    @model_validator(mode="after")
    def _validation_targets_have_samples(self) -> Self:
        metric = self.evaluation.target_metric
        if metric.startswith("validation_") and not self.task.validation:
            raise ValueError(
                f"`evaluation.target_metric: {metric}` needs validation samples; set "
                "`task.validation: {fraction: 0.1}`"
            )
        return self

    @model_validator(mode="after")
    def _metrics_may_select(self) -> Self:
        evaluation = self.evaluation
        metrics = {
            "checkpoints.best": self.checkpoints.best,
            "evaluation.patience.metric": evaluation.patience and evaluation.patience.metric,
        }
        for key, metric in metrics.items():
            if metric and self.task.partition.is_stream:
                raise ValueError(f"`{key}` is not supported for a stream, whose rounds are different tasks; remove it")
            has_validation, scores_clients = self.task.validation is not None, evaluation.clients > 0
            allowed, modes = evaluation.allow_test_selection, self.task.modes
            if metric and (mistake := selection_mistake(key, metric, modes, has_validation, scores_clients, allowed)):
                raise ValueError(mistake)
        if evaluation.allow_test_selection and not any(metrics.values()):
            raise ValueError(
                "`evaluation.allow_test_selection` has no effect without `checkpoints.best` and "
                "`evaluation.patience`; remove it"
            )
        return self

    @model_validator(mode="after")
    def _fedex_needs_client_scores(self) -> Self:
        if self.fedex and (not self.task.validation or self.task.validation.is_at_server):
            raise ValueError(
                "`fedex` scores each client's model on validation samples of the client; set `task.validation: "
                "{fraction: 0.1, from: clients}`"
            )
        return self

    @model_validator(mode="after")
    def _objectives_need_steps(self) -> Self:
        if self.objective and getattr(self.algorithm, "solver", "sgd") == "newton":
            raise ValueError("`objective` needs local steps, and `algorithm.solver: newton` has none; set it to sgd")
        return self

    @model_validator(mode="after")
    def _quadratic_throughout(self) -> Self:
        task = self.task
        uses_quadratic = {
            isinstance(task.data, QuadraticData),
            isinstance(task.model, QuadraticXY),
            isinstance(task.problem, QuadraticProblem),
        }
        if len(uses_quadratic) > 1:
            raise ValueError(
                "`task.data: {name: quadratic}`, `task.model: {name: quadratic}` and `task.problem: {kind: quadratic}` "
                "go together; set all three"
            )
        if (
            isinstance(task.data, QuadraticData)
            and isinstance(task.model, QuadraticXY)
            and task.model.upper != task.data.upper
        ):
            raise ValueError(
                f"`task.model.upper: {task.model.upper}` differs from `task.data.upper: {task.data.upper}`; set them "
                "to the same value"
            )
        return self

    def each_seed(self) -> list[Self]:
        """One experiment for each of `seeds`; this one alone if there are none."""
        return [self.model_copy(update={"seed": seed, "seeds": None}) for seed in self.seeds or []] or [self]

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
        metrics = (self.checkpoints.best, self.evaluation.patience and self.evaluation.patience.metric)
        return any(metric and uses_test_samples(metric) for metric in metrics)

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
        if self.task.partition.is_stream:
            return population
        if self.participation is None:
            return self.clients_per_round or 1
        return max(1, round(self.participation * population))

    def sample_size(self, population: int) -> int:
        """Number of clients sampled for a round; more than the cohort if the simulation loses some."""
        size = self.cohort_size(population)
        return self.simulation.selected(size) if self.simulation else size
