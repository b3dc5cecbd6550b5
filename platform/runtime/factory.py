"""Builds data, partition, model and algorithm of an experiment, in the same way in every process."""

import math
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from hedgerow.algorithms.core.keyed_random import seeded
from hedgerow.algorithms.core.measures import ScoreFunction
from hedgerow.algorithms.core.pytree import count, difference
from hedgerow.algorithms.core.task import Task, trainable
from hedgerow.algorithms.slots.middleware import ComposedAlgorithm
from hedgerow.algorithms.slots.train_mode_rounds import BUFFERS
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.memory import fits, require
from hedgerow.platform.common.own_code_errors import failure
from hedgerow.platform.common.quiet import quiet_libraries
from hedgerow.platform.common.servers import check_server
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.config.measures_section import MeasureChoice
from hedgerow.platform.config.registries import ModelConfig, algorithm_class
from hedgerow.platform.config.teacher_section import Teacher
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.data.content_hash import names_hash
from hedgerow.platform.data.dataset import mistake_in
from hedgerow.platform.data.public_pool import hold_back, with_public
from hedgerow.platform.data.sampling import steps_per_client
from hedgerow.platform.data.sources.cache import load_dataset
from hedgerow.platform.data.validation_samples import hold_back_pool, hold_back_shares
from hedgerow.platform.models.build import build_model
from hedgerow.platform.models.model import Model
from hedgerow.platform.models.vmap_check import compare_constants, fingerprint
from hedgerow.platform.runtime.autotune import require_compiler
from hedgerow.platform.runtime.contract_check import check_contract
from hedgerow.platform.runtime.evaluation import scored_state
from hedgerow.platform.runtime.middleware_order import compose
from hedgerow.platform.runtime.task_rules import Built, refuse
from hedgerow.platform.storage.remote import check_storage
from hedgerow.platform.tracking.run_folder import RunFolder, find_run


def build_data(experiment: Experiment, data_root: Path | None) -> tuple[Dataset, Partition]:
    """Load the data set (converted once, then cached) and draw the partition from the seed.

    Raises UserError when files are missing or the partition does not fit the data.
    """
    task = experiment.task
    loaded = load_dataset(task.data, data_root)
    _check_targets(experiment, loaded)
    dataset = task.partition.prepare(loaded)
    if task.public and task.public.data:
        dataset = with_public(dataset, load_dataset(task.public.data, data_root), task.public.samples)
    return dataset, build_partition(experiment, dataset)


def build_partition(experiment: Experiment, dataset: Dataset) -> Partition:
    """Draw the partition from the seed. Raises UserError when it does not fit the data."""
    task = experiment.task
    _check_targets(experiment, dataset)

    def draw(data: Dataset) -> Partition:
        scheme, splits = task.partition, task.partition.own_splits(data)
        known = {} if splits is None else {"splits": splits}
        return scheme.draw(data.y_train, data.classes, data.train_clients, experiment.seed, data.lent, **known)

    def drawn(dataset: Dataset) -> Partition:
        if task.public:
            return hold_back(dataset, task.public.samples, experiment.seed, draw)
        return draw(dataset)

    validation = task.validation
    with fits("task.partition"):
        if validation and validation.is_at_server:
            partition = hold_back_pool(dataset, validation.fraction, experiment.seed, drawn)
        else:
            partition = drawn(dataset)
        if validation and not validation.is_at_server:
            partition = hold_back_shares(partition, validation.fraction, experiment.seed)
    if experiment.schedule:
        # A client may arrive several times before a server step.
        return partition
    if experiment.cohort_size(len(partition)) > len(partition):
        raise UserError(
            f"clients_per_round: {experiment.clients_per_round} clients per round exceed the population of "
            f"{len(partition)}; lower it or raise task.partition.clients"
        )
    if (sampled := experiment.sample_size(len(partition))) > len(partition):
        raise UserError(
            f"simulation.over_selection: {sampled} sampled clients per round exceed the population of "
            f"{len(partition)}; lower it or clients_per_round"
        )
    return partition


def _check_targets(experiment: Experiment, dataset: Dataset) -> None:
    """Raise UserError when the loss, a metric, the partition or the algorithm needs other targets than the data's."""
    task, kind = experiment.task, dataset.targets
    if experiment.evaluation.confusion_matrix and kind != "classes":
        raise UserError(
            f"evaluation.confusion_matrix: needs one class per sample, and the targets of {dataset.name} are {kind}; "
            "remove it"
        )
    for place, choice in _chosen_functions(experiment):
        takes = choice.measure().targets
        if takes and kind not in takes:
            fitting = [name for name in choice.registry.names() if kind in choice.registry.resolve(name).targets]
            also = ", or store the classes as whole numbers or text instead of floats" if kind == "numbers" else ""
            raise UserError(
                f"{place}: {choice.name} takes {' or '.join(takes)}, and the targets of {dataset.name} are {kind}; "
                f"choose {' or '.join(fitting)}{also}"
            )
    if task.problem is not None and task.problem.needs_cross_entropy and task.loss.name != "cross_entropy":
        raise UserError(f"task.loss: {task.problem.kind} minimises the cross-entropy; set it to cross_entropy")
    if kind == "classes":
        return
    needs = f"needs one class per sample, and the targets of {dataset.name} are {kind}"
    for key in task.partition.class_keys:
        fix = "choose iid or natural" if key == "kind" else "remove it"
        raise UserError(f"task.partition.{key}: {getattr(task.partition, key)} {needs}; {fix}")
    name = experiment.algorithm.name
    if "classes" in algorithm_class(name).needs:
        raise UserError(f"algorithm.name: {name} {needs}; choose another algorithm, such as fedavg")
    if experiment.objective is not None and experiment.objective.needs_classes:
        raise UserError(f"objective.kind: {experiment.objective.kind} {needs}; remove the objective")
    if task.problem is not None and task.problem.needs_classes:
        raise UserError(f"task.problem.kind: {task.problem.kind} {needs}; choose hyper_representation")
    if task.teacher is not None:
        raise UserError(f"task.teacher: a teacher {needs}; remove it")
    if experiment.fedex is not None:
        raise UserError(f"fedex: it scores the accuracy of clients' models, which {needs}; remove it")


def _chosen_functions(experiment: Experiment) -> list[tuple[str, MeasureChoice]]:
    """The loss and the metrics that the file names, with their keys."""
    task = experiment.task
    return [("task.loss", task.loss), *(("task.metrics", choice) for choice in task.metrics or [])]


def _check_functions(experiment: Experiment, dataset: Dataset) -> None:
    """Raise UserError when a loss or metric of the user's own fails, or returns other values than it should."""
    for place, choice in _chosen_functions(experiment):
        if "." not in choice.name:
            continue
        targets, mask = torch.from_numpy(dataset.y_train[:2].copy()), torch.ones(2)
        outputs = torch.zeros(2, *dataset.output_shapes[-1], requires_grad=True)
        measure = choice.measure()
        try:
            if measure.sees_all:
                measure.of_all(outputs.detach().numpy(), targets.numpy())
                continue
            result = measure.function(outputs, targets, mask)
        except Exception as error:
            raise UserError(
                f"{place}: {choice.name} fails on outputs of shape {tuple(outputs.shape)} and targets of shape "
                f"{tuple(targets.shape)} ({failure(error)}); fix it"
            ) from error
        pair = isinstance(result, tuple) and [tuple(getattr(part, "shape", (0,))) for part in result] == [(), ()]
        if not pair and not (isinstance(result, torch.Tensor) and result.shape == (2,)):
            what = f"a tensor of shape {tuple(result.shape)}" if isinstance(result, torch.Tensor) else str(type(result))
            raise UserError(
                f"{place}: {choice.name} returns {what} for 2 samples; return one value per sample, shape (2,), or a "
                "pair (sum, count) of 0-d tensors"
            )
        if place == "task.loss" and not (result[0] if isinstance(result, tuple) else result).requires_grad:
            raise UserError(
                f"{place}: {choice.name} has no gradient, since its value does not depend on the outputs by "
                "differentiable operations; choose another loss, or make it a metric"
            )
        if experiment.engine.mode != "loop" and _reads_padding(measure, dataset):
            raise UserError(
                f"{place}: {choice.name} depends on samples for which its argument `mask` is 0, which only fill up "
                "a mini-batch; multiply by `mask`, or set engine.mode to loop"
            )


def _reads_padding(measure: ScoreFunction, dataset: Dataset) -> bool:
    """Whether the sums of a loss or metric depend on a sample that is padding, or on whether there is one."""
    targets = torch.from_numpy(dataset.y_train[:2].copy())
    outputs = torch.randn(len(targets), *dataset.output_shapes[-1], generator=torch.Generator().manual_seed(0))

    def sums(*padding: int, seed: int = 0) -> Tensor:
        rows, mask = torch.tensor([0, len(targets) - 1, *padding]), torch.tensor([1.0, 1.0] + [0.0] * len(padding))
        with seeded(seed):
            return torch.stack([part.double() for part in measure.sums(outputs[rows], targets[rows], mask)])

    try:
        plain, first, second, again = sums(), sums(0), sums(len(targets) - 1), sums(seed=1)
    except Exception:
        # Outputs of no model may mean nothing to it.
        return False
    # One that draws random numbers is refused by name.
    if not torch.stack([plain, first, second]).isfinite().all() or not torch.equal(plain, again):
        return False
    return not (torch.allclose(plain, first, rtol=1e-4) and torch.allclose(plain, second, rtol=1e-4))


Data = tuple[Dataset, Partition]


def check(experiment: Experiment, data_root: Path | None, given: Data | None = None) -> Data:
    """Check an experiment before any work starts; returns the data and partition that were built for it.

    given: data and partition to use instead of those that the experiment names. Raises UserError when data, partition,
    model and problem do not fit together, or the storage cannot be written to.
    """
    quiet_libraries()
    if experiment.tracking.enabled:
        check_server(experiment.tracking.uri)
    if experiment.checkpoints.storage:
        check_storage(experiment.checkpoints.storage)
    if given and (problem := mistake_in(given[0])):
        raise UserError(f"data=: the data set {problem}")
    dataset, partition = _validated(experiment, *given) if given else build_data(experiment, data_root)
    check_task(experiment, dataset, partition)
    return dataset, partition


def _validated(experiment: Experiment, dataset: Dataset, partition: Partition) -> Data:
    """The caller's data, with the validation samples of the experiment unless the partition has some."""
    validation = experiment.task.validation
    if not validation or partition.selection_sizes is not None or partition.server_validation is not None:
        return dataset, partition
    if validation.is_at_server:
        raise UserError(
            "task.validation.from: the partition in data= leaves no samples to the server; set it to clients, or give "
            "the partition its `server_validation`"
        )
    return dataset, hold_back_shares(partition, validation.fraction, experiment.seed)


def check_task(experiment: Experiment, dataset: Dataset, partition: Partition) -> None:
    """Raise UserError when model, problem, partition and algorithm do not fit together, or the algorithm breaks its
    contract.
    """
    _check_targets(experiment, dataset)
    with fits("algorithm"):
        algorithm = build_algorithms([experiment], dataset, partition)[0]
    _check_functions(experiment, dataset)
    _check_outputs(experiment, dataset, partition)
    _check_streams(experiment, partition)
    refuse(Built(experiment, dataset, partition, algorithm))
    _check_plans(experiment, algorithm)
    if account := experiment.privacy_account(len(partition)):
        account.epsilon(1)
    _check_stack(experiment, algorithm, len(partition))
    _check_repeats(experiment, dataset)
    check_contract(experiment, algorithm, dataset, partition)


def _check_outputs(experiment: Experiment, dataset: Dataset, partition: Partition) -> None:
    """Raise UserError when the outputs of an evaluation do not fit into memory, for metrics of all samples at once."""
    place = "task.metrics" if experiment.task.scoring.sees_all else "evaluation.confusion_matrix"
    if place == "task.metrics" or experiment.evaluation.confusion_matrix:
        splits, clients = partition.splits(), min(experiment.evaluation.clients, len(partition))
        scored = len(dataset.x_test) + clients * int(splits["held_out"].sizes.max(initial=0))
        numbers = scored * math.prod(dataset.output_shapes[0])
        require(2 * 4 * numbers, f"{place}: the outputs for {scored:,} samples", "score fewer of evaluation.clients")


def _check_stack(experiment: Experiment, algorithm: ComposedAlgorithm, population: int) -> None:
    """Raise UserError when the updates of a round do not fit into memory, for rules that need all of them at once."""
    rule = experiment.aggregation.rule
    attack = experiment.slots.attack
    if rule.is_mean and not (attack and attack.colludes):
        return
    place, fix = "aggregation.rule", "set its kind to mean"
    if rule.is_mean:
        place, fix = "simulation.attack", "choose another attack"
    clients, state = experiment.cohort_size(population), algorithm.init_server()
    largest = max(sum(count(state[part.like]) for part in parts.values()) for parts in algorithm.inner.parts.values())
    # The updates as the workers return them, and the stack in the order of the clients.
    require(
        2 * 4 * clients * largest,
        f"{place}: the updates of {clients} clients with {largest:,} numbers each",
        f"{fix}, or lower the number of clients per round",
    )


def _check_repeats(experiment: Experiment, dataset: Dataset) -> None:
    """Raise UserError when a foreign model differs each time it is built: every process builds it."""
    task = experiment.task
    teacher = task.teacher.model if task.teacher else None
    for place, config in (("task.model", task.model), ("task.teacher.model", teacher)):
        if config is not None and config.is_foreign:
            built = (_module(config, dataset, experiment.seed) for _ in range(2))
            once, again = (fingerprint([*module.named_parameters(), *module.named_buffers()]) for module in built)
            if once != again:
                raise UserError(
                    f"{place}: {config.name} has different parameters or buffers each time it is built; draw them "
                    "from torch's generator, which is seeded, not from NumPy or random"
                )


def _check_streams(experiment: Experiment, partition: Partition) -> None:
    """Raise UserError when the indices of the samples that one client draws in a round do not fit into memory."""
    batches = getattr(experiment.algorithm, "batches", {})
    batches = batches if isinstance(batches, dict) else {}
    if experiment.objective is not None and "train" in batches:
        batches = experiment.objective.batches(batches)
    for spec in batches.values():
        sizes = partition.splits()[spec.split].sizes
        steps = int(steps_per_client(spec, sizes).max(initial=0))
        require(
            INDEX * steps * (spec.size or int(sizes.max(initial=1))),
            f"algorithm: the sample indices of the {steps:,} local steps of a client in a round",
            "lower `epochs`, `steps` or `batch_size`",
        )


def _check_plans(experiment: Experiment, algorithm: ComposedAlgorithm) -> None:
    """Raise UserError when a plan in the file names a step that the algorithm does not have, or cannot run."""
    name, inner = experiment.algorithm.name, algorithm.inner
    no_vmap = getattr(inner.task.module, "no_vmap", None)
    if experiment.engine.compiling:
        require_compiler("engine", "set compile to false, or remove the plans")
    if experiment.engine.mode == "vmap" and experiment.no_vmap:
        raise UserError(f"engine.mode: vmap is not possible: {experiment.no_vmap}; set it to loop or auto")
    for step, plan in experiment.engine.plans.items():
        if not callable(getattr(inner, step.partition("/")[0], None)):
            raise UserError(f"engine.plans: {name} has no step {step!r}; remove it")
        if plan.mode == "vmap" and no_vmap:
            raise UserError(f"engine.plans: {step} cannot run under vmap ({no_vmap}); set its mode to loop")


INDEX = 17
"""Bytes per sample of a mini-batch: its position, its row, and whether it is a real sample."""


def build_module(experiment: Experiment, dataset: Dataset, seed: int | None = None) -> torch.nn.Module:
    """Model with its initial parameters, which the seed determines; None: the experiment's seed."""
    return _module(experiment.task.model, dataset, experiment.seed if seed is None else seed)


def _module(config: ModelConfig, dataset: Dataset, seed: int) -> torch.nn.Module:
    with seeded(seed), fits("task.model"):
        if isinstance(config, Model) and dataset.is_tokens:
            config = config.for_tokens(dataset.classes, lambda: dataset.vocabulary)
        tokens = dataset.x_train if dataset.is_tokens else None
        return build_model(
            config, dataset.sample_shape, dataset.classes, tokens, dataset.targets, dataset.output_shapes
        )


def build_teacher(teacher: Teacher, dataset: Dataset, partition: Partition, seed: int) -> torch.nn.Module:
    """Model of a run, see `FinishedRun.module`, or one that is still to be trained. Raises UserError when there is
    none, or it does not fit the data.
    """
    if teacher.model is not None:
        return _module(teacher.model, dataset, seed)
    file, folder = teacher.experiment, RunFolder(Path(str(teacher.run)))
    if folder.exists:
        # Its model may be the user's own, next to another experiment file.
        find_run(str(folder))
        _check_inputs(str(teacher.run), folder, dataset)
    trained, server = load_experiment(file), teacher.server()
    (algorithm,) = build_algorithms([trained], dataset, partition)
    if difference(algorithm.init_server(), server):
        raise UserError(
            f"task.teacher.run: the model of {teacher.run} is for other samples or classes than task.data's; name a "
            "run on the same data"
        )
    module = build_module(trained, dataset)
    mode = getattr(module, "train_mode", None)
    if mode is not None and mode.buffers and mode.policy != "average":
        raise UserError(
            f"task.teacher.run: the server of {teacher.run} has no running statistics (task.model.buffers: "
            f"{mode.policy}), without which its model cannot teach; name a run with `buffers: average`"
        )
    if folder.exists:
        compare_constants(module, folder.constants)
    parameters = algorithm.evaluate_params(scored_state(server))
    if outside := sorted(server.get("w", {}).keys() - parameters.keys()):
        raise UserError(
            f"task.teacher.run: {teacher.run} scores its model through {outside[0]!r}, which is not part of it; name a "
            "run of another algorithm or objective"
        )
    is_split = algorithm.inner.is_personal and "w" in server
    common = {**server["w"], **server.get(BUFFERS, {})} if is_split else parameters
    whole = [*trainable(module), *(mode.buffers if mode else ())]
    if missing := next((name for name in whole if name not in common), None):
        raise UserError(
            f"task.teacher.run: the server of {teacher.run} does not have {missing!r}, which each of its clients has "
            "for itself; name a run whose server has the whole model"
        )
    # Frozen parameters are not saved, and the module has them from its constructor.
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if name in parameters:
            tensor.data = parameters[name].clone()
    return module.eval()


def _check_inputs(run: str, folder: RunFolder, dataset: Dataset) -> None:
    """Raises UserError if the teacher's run still changes its model, or had other inputs or other classes."""
    record = folder.record()
    if folder.status == "running":
        raise UserError(f"task.teacher.run: {run} is still running, so its model changes; let it finish")
    data = (folder.search.record() if folder.search else record).get("data") or {}
    ours = {"normalisation": normalisation_hash(dataset), "class_names": names_hash(dataset.class_names)}
    words = {"normalisation": "`mean` and `std`", "class_names": "names or order of classes"}
    for key, own in ours.items():
        if own and data.get(key) not in (None, own):
            raise UserError(
                f"task.teacher.run: the data of {run} have other {words[key]} than task.data's, so its outputs would "
                "mean something else; name a run on the same data"
            )


def normalisation_hash(dataset: Dataset) -> str | None:
    """Hash of the normalisation of a data set; None for tokens, which have none."""
    if dataset.is_tokens:
        return None
    return fingerprint([("mean", torch.tensor(dataset.mean)), ("std", torch.tensor(dataset.std))])


def task_on(dataset: Dataset, module: torch.nn.Module) -> Task:
    """Mathematical task: a model on normalised samples of a data set."""
    mode = getattr(module, "train_mode", None)
    task = Task(module, sample_shape=dataset.sample_shape, targets=dataset.targets, train_mode=mode)
    if dataset.is_tokens:
        return task
    mean, std = (torch.tensor(value, dtype=torch.float32) for value in (dataset.mean, dataset.std))
    return replace(task, mean=mean, std=std)


def build_algorithms(experiments: list[Experiment], dataset: Dataset, partition: Partition) -> list[ComposedAlgorithm]:
    """Algorithms of experiments that share task and seed, with their middleware."""
    first = experiments[0]
    module = build_module(first, dataset)
    task = replace(task_on(dataset, module), scoring=first.task.scoring)
    config = first.task.teacher
    teacher = build_teacher(config, dataset, partition, first.seed) if config else None
    if teacher is not None and teacher.no_vmap:
        # If the teacher cannot be batched, neither can a step that uses it.
        module.no_vmap = teacher.no_vmap
    # Nor can a step whose optimiser changes parameters in place.
    module.no_vmap = module.no_vmap or first.no_vmap  # type: ignore[assignment]
    task = replace(
        task,
        build=lambda seed: build_module(first, dataset, seed),
        augment=first.task.augment,
        teacher=teacher,
        teacher_training=config.teacher_training if config else None,
    )
    if first.task.problem:
        task = first.task.problem.build(task, dataset, partition)
    algorithms = [algorithm_class(one.algorithm.name)(one.algorithm, task) for one in experiments]
    # Experts of a pack have the same structure, even if a float leaves the slots of one of them empty.
    slots = [one.private_slots(len(partition)) for one in experiments]
    are_filled = any(one.are_filled for one in slots)
    return [
        compose(algorithm, own if are_filled else None, one.fedex, dataset.classes)
        for algorithm, own, one in zip(algorithms, slots, experiments, strict=True)
    ]
