"""Rules between the sections of an experiment file."""

from hedgerow.algorithms.core.hyperparameters import Rule
from hedgerow.platform.config.measures_section import LossChoice
from hedgerow.platform.config.problem_section import QuadraticProblem
from hedgerow.platform.data.sources.quadratic_data import QuadraticData
from hedgerow.platform.models.quadratic_xy import QuadraticXY

EXPERIMENT_RULES = (
    Rule(
        lambda e: e.is_stream and e.task.partition.tasks < e.rounds,
        "`rounds: {rounds}` is more than the {task.partition.tasks} tasks of the stream; lower it or raise "
        "task.partition.tasks",
    ),
    Rule(
        lambda e: e.evaluation.efficiency and not e.is_stream,
        "`evaluation.efficiency` applies only to the tasks of a stream; remove it",
    ),
    Rule(
        lambda e: (
            e.evaluation.efficiency
            and e.evaluation.efficiency.points[-1] > e.task.partition.train
            and e.evaluation.efficiency.points[-1]
        ),
        "`evaluation.efficiency.points` goes up to {found}, but a task has {task.partition.train} training "
        "samples; lower it",
    ),
    Rule(
        lambda e: e.is_stream and (e.task.augment or e.task.teacher),
        "`task.augment` and `task.teacher` are not supported for a stream; remove them",
    ),
    Rule(
        lambda e: e.is_stream and (e.task.loss != LossChoice() or e.task.metrics is not None),
        "`task.loss` and `task.metrics` are not supported for a stream; remove them",
    ),
    Rule(
        lambda e: e.is_stream and e.evaluation.confusion_matrix,
        "`evaluation.confusion_matrix` is not supported for a stream, whose rounds are different tasks; remove it",
    ),
    Rule(lambda e: e.is_stream and e.simulation, "`simulation` needs clients, and a stream has none; remove it"),
    Rule(lambda e: e.is_stream and e.task.public, "`task.public` is not supported for a stream; remove it"),
    Rule(
        lambda e: e.is_stream and e.task.validation,
        "`task.validation` is not supported for a stream, whose tasks are scored on their test samples before "
        "they are learnt; remove it",
    ),
    Rule(
        lambda e: e.is_stream and e.evaluation.targets,
        "`evaluation.targets` is not supported for a stream, whose rounds are different tasks; remove it",
    ),
    Rule(
        lambda e: e.is_stream and e.evaluation.test == "end",
        "`evaluation.test: end` is not supported for a stream, whose tasks are scored on their test samples before "
        "they are learnt; remove it",
    ),
    Rule(
        lambda e: e.is_stream and next(iter(e.selecting), None),
        "`{found}` is not supported for a stream, whose rounds are different tasks; remove it",
    ),
    Rule(
        lambda e: e.evaluation.target_metric.startswith("validation_") and not e.task.validation,
        "`evaluation.target_metric: {evaluation.target_metric}` needs validation samples; set `task.validation: "
        "{{fraction: 0.1}}`",
    ),
    Rule(
        lambda e: e.evaluation.allow_test_selection and not e.selecting,
        "`evaluation.allow_test_selection` has no effect without `checkpoints.best` and `evaluation.patience`; "
        "remove it",
    ),
    Rule(
        lambda e: e.fedex and (not e.task.validation or e.task.validation.is_at_server),
        "`fedex` scores each client's model on validation samples of the client; set `task.validation: "
        "{{fraction: 0.1, from: clients}}`",
    ),
    Rule(
        lambda e: e.objective and getattr(e.algorithm, "solver", "sgd") == "newton",
        "`objective` needs local steps, and `algorithm.solver: newton` has none; set it to sgd",
    ),
    Rule(
        lambda e: (
            isinstance(e.task.data, QuadraticData)
            + isinstance(e.task.model, QuadraticXY)
            + isinstance(e.task.problem, QuadraticProblem)
            in (1, 2)
        ),
        "`task.data: {{name: quadratic}}`, `task.model: {{name: quadratic}}` and `task.problem: {{kind: "
        "quadratic}}` go together; set all three",
    ),
    Rule(
        lambda e: isinstance(e.task.data, QuadraticData) and e.task.model.upper != e.task.data.upper,
        "`task.model.upper: {task.model.upper}` differs from `task.data.upper: {task.data.upper}`; set them to "
        "the same value",
    ),
)
