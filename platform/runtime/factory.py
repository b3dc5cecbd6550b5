"""Builds data, partition, model and algorithm of an experiment, in the same way in every process."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from hedgerow.algorithms.core.keyed_random import seeded
from hedgerow.algorithms.core.pytree import count
from hedgerow.algorithms.core.task import Task, trainable
from hedgerow.algorithms.slots.middleware import ComposedAlgorithm
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.memory import fits, require
from hedgerow.platform.common.own_code_errors import failure
from hedgerow.platform.common.quiet import quiet_libraries
from hedgerow.platform.common.servers import check_server
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.config.measures_section import MeasureChoice
from hedgerow.platform.config.registries import ModelConfig, algorithm_class
from hedgerow.platform.config.teacher_section import Teacher, with_parameters
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.data.dataset import mistake_in_units
from hedgerow.platform.data.public_pool import hold_back, with_public
from hedgerow.platform.data.sampling import steps_per_client
from hedgerow.platform.data.sources.cache import load_dataset
from hedgerow.platform.data.validation_samples import hold_back_pool, hold_back_shares
from hedgerow.platform.models.build import build_model
from hedgerow.platform.models.model import Model
from hedgerow.platform.models.vmap_check import compare_constants, fingerprint
from hedgerow.platform.runtime.autotune import require_compiler
from hedgerow.platform.runtime.contract_check import check_contract
from hedgerow.platform.runtime.middleware_order import compose
from hedgerow.platform.schedules.compatibility import schedule_objection
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
            f"{len(partition)}; lower it or participation"
        )
    return partition


def _check_targets(experiment: Experiment, dataset: Dataset) -> None:
    """Raise UserError when the loss, a metric, the partition or the algorithm needs other targets than the data's."""
    task, kind = experiment.task, dataset.targets
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
        try:
            result = choice.measure().function(outputs, targets, mask)
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
    if given and (problem := mistake_in_units(given[0])):
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
    _check_streams(experiment, partition)
    name, inner = experiment.algorithm.name, algorithm.inner
    _check_train_mode(experiment, algorithm)
    if experiment.task.model.init and getattr(experiment.algorithm, "starts", 1) > 1:
        raise UserError("task.model.init: models trained side by side would all be the same; set algorithm.starts to 1")
    _check_augmentation(experiment, dataset)
    _check_plans(experiment, algorithm)
    if experiment.privacy:
        # Before the slots, whose reasons name the transforms that `privacy` stands for.
        _check_privacy(experiment, algorithm, len(partition))
    if reason := algorithm.incompatibility():
        raise UserError(reason)
    if reason := experiment.aggregation.rule.incompatibility(experiment.cohort_size(len(partition))):
        raise UserError(f"aggregation.rule.{reason}")
    _check_stack(experiment, algorithm, len(partition))
    if experiment.schedule and (reason := schedule_objection(experiment, algorithm, len(partition))):
        raise UserError(reason)
    if "all_clients" in inner.needs and experiment.cohort_size(len(partition)) < len(partition):
        raise UserError(f"participation: {name} needs all clients in every round; set it to 1.0")
    if experiment.simulation and ("all_clients" in inner.needs or inner.trains_on == "pool"):
        needs_all = "all_clients" in inner.needs
        why = "needs all clients in every round" if needs_all else "trains in one place, without clients"
        raise UserError(f"simulation: {name} {why}; remove it")
    if algorithm.task.is_static and not experiment.evaluation.clients:
        raise UserError(
            f"evaluation.clients: {experiment.task.model.name} is scored with normalisation statistics of "
            "clients' samples; set it above 0"
        )
    if experiment.evaluation.target_metric.endswith(("_highest", "_lowest")) and not inner.is_personal:
        raise UserError(
            f"evaluation.target_metric: {experiment.evaluation.target_metric} needs personal models, and {name} has "
            "none; set it to client_accuracy"
        )
    if algorithm.task.is_static and experiment.evaluation.follows:
        raise UserError(
            f"evaluation.model: {experiment.task.model.name} normalises by statistics of clients' samples, which are "
            "measured for a single model; set it to server"
        )
    if inner.is_personal and algorithm.task.is_scored:
        own = f"with {name} every client has its own model, which is scored on the client's held-out samples"
        if not partition.holds_out:
            raise UserError(f"task.partition.holdout: {own}; raise it until every client has some")
        if not experiment.evaluation.clients:
            raise UserError(f"evaluation.clients: {own}; set it above 0")
        if algorithm.task.is_static:
            raise UserError(
                f"task.model: {experiment.task.model.name} normalises by statistics of all clients' samples, and "
                f"{own}; choose another model"
            )
    if "validation" in inner.needs and not partition.splits()["validation"].sizes.all():
        raise UserError(
            f"task.partition.validation: every client needs validation samples with {name}, for its upper level or "
            "as the server's own samples; raise it"
        )
    _check_validation(experiment, algorithm)
    if (size := len(partition.rows("public"))) < inner.public_samples:
        raise UserError(
            f"task.public: {name} needs public samples, at least {inner.public_samples}, and there are "
            f"{size}; set `samples: {inner.public_samples}` or more"
        )
    _check_repeats(experiment, dataset)
    check_contract(experiment, algorithm, dataset, partition)


def _check_privacy(experiment: Experiment, algorithm: ComposedAlgorithm, population: int) -> None:
    """Raise UserError when something leaves clients without noise, or accounting is not possible."""
    name, remove = experiment.algorithm.name, "remove one of the two"
    clips = any(transform.is_clip or transform.adds_server_noise for transform in experiment.transforms)
    mode = algorithm.task.train_mode
    averaged = mode is not None and mode.policy == "average" and mode.buffers
    normalises = algorithm.task.is_static or not all(algorithm.inner.keeps_buffer(name) for name in averaged or ())
    reasons = [
        (
            not algorithm.inner.supports_privacy,
            f"privacy: a round of {name} is not one update of each client, which a clip and noise can cover; remove it",
        ),
        (clips, "transforms: `privacy` clips and adds noise itself; remove the clip and the noise"),
        (experiment.schedule, f"schedule: privacy is accounted for cohorts drawn at random; {remove}"),
        (experiment.simulation, f"simulation: privacy is accounted for cohorts that take part in full; {remove}"),
        (experiment.fedex, f"fedex: scores of clients have no noise; {remove}"),
        (experiment.evaluation.follows, "evaluation.model: clients' own models have no noise; set it to server"),
        (
            normalises,
            "task.model: statistics of batch norm would be sent without noise; choose a model without it",
        ),
    ]
    if reason := next((reason for is_true, reason in reasons if is_true), None):
        raise UserError(reason)
    if account := experiment.privacy_account(population):
        account.epsilon(1)


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


def _check_validation(experiment: Experiment, algorithm: ComposedAlgorithm) -> None:
    """Raise UserError when validation samples cannot be scored, or a validation split of the clients is not used."""
    task, name = experiment.task, experiment.algorithm.name
    if task.validation and not algorithm.task.is_scored:
        raise UserError("task.validation: the model of this task has no accuracy or loss on samples; remove it")
    if task.validation and task.validation.is_at_server and algorithm.inner.is_personal:
        raise UserError(
            f"task.validation.from: with {name} every client has its own model, which the server's samples cannot "
            "score; set it to clients"
        )
    if getattr(task.partition, "validation", 0.0) and not ("validation" in algorithm.inner.needs or task.problem):
        raise UserError(
            f"task.partition.validation: {name} does not use it; remove it, or set `task.validation` to hold back "
            "samples for choosing hyperparameters"
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


def _check_train_mode(experiment: Experiment, algorithm: ComposedAlgorithm) -> None:
    """Raise UserError when the experiment does not support a model or teacher that differs in training mode."""
    config = experiment.task.teacher
    if config is not None and config.model is not None and getattr(algorithm.task.teacher, "train_mode", None):
        raise UserError(
            "task.teacher.model: a teacher with batch norm or dropout is not trained here; train it as a run of its "
            "own, and set task.teacher.run to its folder"
        )
    if mode := getattr(algorithm.task.teacher, "train_mode", None):
        for attribute in mode.attributes:
            raise UserError(
                f"task.teacher: a call of the teacher changes its attribute {str(attribute)!r}, on which the next one "
                "would depend; do not change it in forward"
            )
    mode = getattr(algorithm.task.module, "train_mode", None)
    if mode is None:
        return
    if experiment.task.problem:
        raise UserError(
            f"task.problem: it does not support a model with {mode.layers} in training; choose another model"
        )
    if mode.kept and experiment.evaluation.follows:
        raise UserError(f"evaluation.model: averages of clients' latest models have no {mode.layers}; set it to server")
    if experiment.fedex and mode.buffers and mode.policy != "average":
        raise UserError("task.model.buffers: FedEx scores each client's model, with its buffers; set it to average")
    engine = experiment.engine
    if engine.compile is True or any(plan.compiled for plan in engine.plans.values()):
        place = "compile" if engine.compile is True else "plans"
        raise UserError(f"engine.{place}: a model with {mode.layers} is not compiled; set it to false")


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


def _check_augmentation(experiment: Experiment, dataset: Dataset) -> None:
    """Raise UserError when the augmentation does not fit the samples or the algorithm."""
    name, augment = experiment.algorithm.name, experiment.task.augment
    if augment is None:
        return
    shape, images = dataset.sample_shape, dataset.x_train.dtype == np.uint8 and not dataset.is_tokens
    if len(shape) != 3 or not images:
        raise UserError(f"task.augment: {dataset.name} has no images; remove it")
    if augment.cutout > max(shape[1:]) or augment.crop > max(shape[1:]):
        raise UserError(f"task.augment: `crop` or `cutout` exceeds the image size {shape[1]}x{shape[2]}; lower it")
    if augment.auto and dataset.x_train.max() <= 127:
        raise UserError(
            f"task.augment.auto: the policy needs 8-bit images, and {dataset.name} has fewer bits; remove it"
        )
    if not any(spec.views for spec in getattr(experiment.algorithm, "batches", {}).values()):
        raise UserError(f"task.augment: {name} does not augment samples; remove it")


def _check_plans(experiment: Experiment, algorithm: ComposedAlgorithm) -> None:
    """Raise UserError when a plan in the file names a step that the algorithm does not have, or cannot run."""
    name, inner = experiment.algorithm.name, algorithm.inner
    no_vmap = getattr(inner.task.module, "no_vmap", None)
    if experiment.engine.compile is True or any(plan.compiled for plan in experiment.engine.plans.values()):
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
            config = config.for_tokens(lambda: dataset.vocabulary)
        return build_model(
            config, dataset.sample_shape, dataset.classes, dataset.is_tokens, dataset.targets, dataset.output_shapes
        )


def build_teacher(teacher: Teacher, dataset: Dataset, seed: int) -> torch.nn.Module:
    """Model of a finished run, or one that is still to be trained. Raises UserError when there is none, or it does not
    fit the data.
    """
    if teacher.model is not None:
        return _module(teacher.model, dataset, seed)
    file, folder = teacher.experiment, RunFolder(Path(str(teacher.run)))
    if folder.exists:
        # Its model may be the user's own, next to another experiment file.
        find_run(str(folder))
    trained = load_experiment(file)
    module = build_module(trained, dataset)
    mode = getattr(module, "train_mode", None)
    if mode is not None and mode.buffers and mode.policy != "average":
        raise UserError(
            f"task.teacher.run: the server of {teacher.run} has no running statistics (task.model.buffers: "
            f"{mode.policy}), without which its model cannot teach; name a run with `buffers: average`"
        )
    if folder.exists:
        compare_constants(module, folder.constants)
    parameters = teacher.parameters()
    whole = [*trainable(module), *(mode.buffers if mode else ())]
    if missing := next((name for name in whole if name not in parameters), None):
        raise UserError(
            f"task.teacher.run: the server of {teacher.run} does not have {missing!r}, which each of its clients has "
            "for itself; name a run whose server has the whole model"
        )
    return with_parameters(module, parameters, str(teacher.run))


def task_on(dataset: Dataset, module: torch.nn.Module) -> Task:
    """Mathematical task: a model on normalised samples of a data set."""
    mode = getattr(module, "train_mode", None)
    task = Task(module, sample_shape=dataset.sample_shape, targets=dataset.targets, train_mode=mode)
    if dataset.is_tokens:
        return task
    return replace(task, mean=torch.tensor(dataset.mean), std=torch.tensor(dataset.std))


def build_algorithms(experiments: list[Experiment], dataset: Dataset, partition: Partition) -> list[ComposedAlgorithm]:
    """Algorithms of experiments that share task and seed, with their middleware."""
    first = experiments[0]
    module = build_module(first, dataset)
    task = replace(task_on(dataset, module), scoring=first.task.scoring)
    config = first.task.teacher
    teacher = build_teacher(config, dataset, first.seed) if config else None
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
