"""The experiment file's schema: every key, its type, its bounds, its default."""

import math
from typing import Generic, Literal, Self, TypeVar

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from hedgerow.algorithms.core.hyperparameters import HyperParameters
from hedgerow.algorithms.slots.slots import Slots, SlottedHyper
from hedgerow.platform.common.section import Section
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
from hedgerow.platform.config.slots_section import AggregationConfig
from hedgerow.platform.config.system_heterogeneity import Simulation
from hedgerow.platform.config.teacher_section import Teacher
from hedgerow.platform.data.augmentation import Augmentation
from hedgerow.platform.data.partitions.task_stream import Stream
from hedgerow.platform.data.sources.quadratic_data import QuadraticData
from hedgerow.platform.models.quadratic_xy import QuadraticXY
from hedgerow.platform.storage.remote import is_uri, uri_objection


class Public(Section):
    """Samples without labels that the server and all clients have."""

    samples: int | None = Field(None, ge=1, description="how many; null: all of `data`")
    data: DataConfig | None = Field(
        None,
        description="another data set, with samples of the same shape, which are normalised as the task's are; null: "
        "they are held back from the task's training samples",
    )

    @model_validator(mode="after")
    def _not_everything(self) -> Self:
        if self.samples is None and self.data is None:
            raise ValueError("give `samples`, how many training samples are held back, or `data`, another data set")
        return self


class TaskConfig(Section):
    """What is to be learnt: data, its partition over clients, the model, its two levels, and what is public."""

    data: DataConfig = Field(description="what is learnt from")
    partition: PartitionConfig = Field(description="which client has which samples")
    model: ModelConfig = Field(description="what is learnt")
    problem: ProblemConfig | None = Field(None, description="for bilevel algorithms; null: plain classification")
    public: Public | None = Field(None, description="samples without labels that everybody has; null: there are none")
    augment: Augmentation | None = Field(None, description="of images in local training; null: none")
    teacher: Teacher | None = Field(None, description="a model that others learn from; null: there is none")

    @model_validator(mode="after")
    def _all_dealt(self) -> Self:
        if self.public and self.partition.deals_test_samples:
            raise ValueError(
                f"`partition` {self.partition.kind} deals samples of the test set too, beside which none are public; "
                "remove `public`, or choose another partition"
            )
        return self


class Efficiency(Section):
    """With how few samples of a new task the adapted model is good enough (thesis, A.1.4 and figure A.20)."""

    threshold: float = Field(gt=0, lt=1, description="test accuracy that is to be reached")
    points: list[int] = Field(min_length=1, description="numbers of samples that are tried, from the fewest; 0: none")

    @model_validator(mode="after")
    def _points_ascend(self) -> Self:
        if self.points[0] < 0 or sorted(set(self.points)) != self.points:
            raise ValueError("`points` must ascend from 0 or more")
        return self


class Evaluation(Section):
    """What is measured, and how often."""

    every: int = Field(1, ge=1, description="score the server's model every so many rounds, and after the last")
    clients: int = Field(
        100, ge=0, description="score it also on the samples of up to this many clients (the same ones each time)"
    )
    model: Literal["server", "clients"] = Field(
        "server",
        description="the model that is scored: the server's, or the average of all clients' latest own models; then "
        "the server's is recorded beside it, as server_test_accuracy and server_test_loss, unless models are personal",
    )
    targets: list[float] = Field(
        [], description="values of `target_metric`: report the rounds and transmissions that reach each"
    )
    target_metric: Literal[
        "test_accuracy",
        "client_loss",
        "client_accuracy",
        "client_accuracy_highest",
        "client_accuracy_lowest",
        "simple_test_accuracy",
    ] = Field(
        "test_accuracy",
        description="what the targets are: test accuracies between 0 and 1; or of the clients' accuracies on their own "
        "samples the mean, or, where models are personal, the highest or lowest; or the mean of the clients' mean "
        "losses on them, without any penalty; or test accuracies of the simple network beside the model",
    )
    stop: bool = Field(False, description="end the run when all targets are reached")
    efficiency: Efficiency | None = Field(
        None, description="of a stream's tasks: how many samples of each are needed; null: not measured"
    )

    @model_validator(mode="after")
    def _targets_fit(self) -> Self:
        accuracies = "accuracy" in self.target_metric
        for target in self.targets:
            # A client may well have all of its samples right.
            perfect = target == 1 and self.target_metric.startswith("client_accuracy")
            if not 0 < target < (1 if accuracies else math.inf) and not perfect:
                wanted = "a test accuracy between 0 and 1" if accuracies else "a loss above 0"
                raise ValueError(f"target {target:g} is not {wanted}")
        if self.target_metric.startswith("client_") and not self.clients:
            raise ValueError(f"`target_metric: {self.target_metric}` needs `clients` above 0")
        if self.stop and not self.targets:
            raise ValueError("`stop` needs `targets`, which end the run")
        return self

    @property
    def follows(self) -> bool:
        """Whether each client's latest own model is kept, for their average."""
        return self.model == "clients"

    @property
    def accuracies(self) -> list[float]:
        """The targets, where they are test accuracies: lines in the figures."""
        return self.targets if self.target_metric == "test_accuracy" else []


class StepPlan(Section):
    """How one step is run."""

    mode: Literal["loop", "vmap"] = Field(description="one client after the other, or `chunk` clients at once")
    chunk: int = Field(1, ge=1, description="clients at once under vmap")
    compiled: bool = Field(False, description="whether vmap runs through torch.compile")


class EngineConfig(Section):
    """How an actor works through its clients."""

    mode: Literal["auto", "loop", "vmap"] = Field(
        "auto", description="one client after the other, or many at once; auto: whichever a short measurement favours"
    )
    chunk: int | Literal["auto"] = Field("auto", description="clients at once under vmap")
    compile: bool | Literal["auto"] = Field(
        "auto",
        description="whether vmap runs through torch.compile (clients need equally many steps); auto: in long runs, if "
        "it is faster",
    )
    plans: dict[str, StepPlan] = Field(
        {},
        description="plans of single steps, by name, as `plans` in the run.json of another run has them; they go "
        "before mode, chunk and compile, and repeat that run's numbers bit for bit",
    )

    @model_validator(mode="after")
    def _chunk_is_positive(self) -> Self:
        if self.chunk != "auto" and self.chunk < 1:
            raise ValueError("`chunk` must be auto or at least 1")
        return self


class Checkpoints(Section):
    """When the run is saved."""

    every: int = Field(10, ge=0, description="save every so many rounds, and after the last; 0: only after the last")
    keep: int = Field(2, ge=1, description="how many checkpoints to keep")
    storage: str | None = Field(
        None, description="URI of a folder for a copy of the run's, made after every checkpoint; null: there is none"
    )

    @field_validator("storage")
    @classmethod
    def _is_a_uri(cls, storage: str | None) -> str | None:
        if storage is not None and (objection := uri_objection(storage)):
            raise ValueError(objection)
        return storage


class Tracking(Section):
    """Where MLflow records the run."""

    enabled: bool = Field(True, description="whether MLflow records the run; its folder has everything in any case")
    uri: str | None = Field(None, description="MLflow tracking URI; null: an SQLite store, hedgerow.db in `output`")
    experiment: str = Field("hedgerow", min_length=1, description="MLflow experiment")
    patience: float = Field(
        30.0, gt=0, description="seconds that the end of a run waits for MLflow; `hedgerow push` sends the rest later"
    )


H = TypeVar("H", bound=HyperParameters)


class Experiment(Section, Generic[H]):
    """One experiment: task, algorithm, rounds, resources, tracking."""

    alternatives = (("participation", "clients_per_round"),)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="names the run and its folder")
    seed: int = Field(0, ge=0, lt=2**63, description="decides everything random")
    rounds: int = Field(ge=1, description="rounds of communication")
    participation: float | None = Field(
        0.1, gt=0, le=1, description="fraction of the clients that take part in a round; null: see clients_per_round"
    )
    clients_per_round: int | None = Field(None, ge=1, description="their number, in place of `participation`")
    task: TaskConfig
    algorithm: SerializeAsAny[H]
    aggregation: AggregationConfig = AggregationConfig()
    transforms: list[TransformConfig] = Field(
        [], description="what happens to a client's update before it is sent, in this order"
    )
    objective: ObjectiveConfig | None = Field(
        None, description="what clients minimise in place of the task's loss; null: that loss"
    )
    simulation: Simulation | None = Field(
        None, description="clients that are slow, away, or lost in the middle of a round; null: all take part in time"
    )
    evaluation: Evaluation = Evaluation()
    resources: Resources = Resources()
    engine: EngineConfig = EngineConfig()
    checkpoints: Checkpoints = Checkpoints()
    tracking: Tracking = Tracking()
    output: str = Field("runs", min_length=1, description="folder of the runs, made if absent")

    @field_validator("output")
    @classmethod
    def _is_a_folder(cls, output: str) -> str:
        if is_uri(output):
            raise ValueError(f"{output!r} is a URI, and runs work in a local folder; give it as `checkpoints.storage`")
        return output

    @model_validator(mode="after")
    def _streams_last(self) -> Self:
        stream = self.task.partition if isinstance(self.task.partition, Stream) else None
        if stream and stream.tasks < self.rounds:
            raise ValueError(
                f"`rounds: {self.rounds}` are more than the {stream.tasks} tasks of the stream; lower it or raise "
                "task.partition.tasks"
            )
        efficiency = self.evaluation.efficiency
        if efficiency and not stream:
            raise ValueError("`evaluation.efficiency` is about the tasks of a stream; remove it")
        if efficiency and stream and efficiency.points[-1] > stream.train:
            raise ValueError(
                f"`evaluation.efficiency.points` goes up to {efficiency.points[-1]}, but a task has {stream.train} "
                "training samples; lower it"
            )
        if stream and (self.task.augment or self.task.teacher):
            raise ValueError("`task.augment` and `task.teacher` do not go with a stream; remove them")
        if stream and self.simulation:
            raise ValueError("`simulation` is about clients, of which a stream has none; remove it")
        if stream and self.task.public:
            raise ValueError("`task.public` does not go with a stream; remove it")
        if stream and self.evaluation.targets:
            raise ValueError(
                "`evaluation.targets` does not go with a stream, where every round is another task; remove it"
            )
        return self

    @model_validator(mode="after")
    def _objectives_need_steps(self) -> Self:
        if self.objective and getattr(self.algorithm, "solver", "sgd") == "newton":
            raise ValueError(
                "`objective` draws anew in every local step, and `algorithm.solver: newton` has none; set it to sgd"
            )
        return self

    @model_validator(mode="after")
    def _quadratic_throughout(self) -> Self:
        task = self.task
        said = {
            isinstance(task.data, QuadraticData),
            isinstance(task.model, QuadraticXY),
            isinstance(task.problem, QuadraticProblem),
        }
        if len(said) > 1:
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
                f"`task.model.upper: {task.model.upper}` is not `task.data.upper: {task.data.upper}`; set it to that"
            )
        return self

    @property
    def slots(self) -> Slots:
        """What stands around the algorithm."""
        return Slots.model_construct(aggregation=self.aggregation, transforms=self.transforms, objective=self.objective)

    @property
    def hyper(self) -> SlottedHyper:
        """All hyperparameters that trials of a pack may differ in, by the dotted paths of the file."""
        return SlottedHyper.of(self.algorithm, self.slots)

    def cohort_size(self, population: int) -> int:
        """How many of the `population` clients take part in a round: at least one. Of a stream, all tasks: they are
        scored together.
        """
        if self.task.partition.is_stream:
            return population
        if self.participation is None:
            return self.clients_per_round or 1
        return max(1, round(self.participation * population))

    def sample_size(self, population: int) -> int:
        """How many are sampled for a round: more where the simulation loses some."""
        wanted = self.cohort_size(population)
        return self.simulation.selected(wanted) if self.simulation else wanted
