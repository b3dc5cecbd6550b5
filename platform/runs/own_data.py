"""Checks that a run continues with the data that it started with, by content hashes in run.json."""

from pathlib import Path
from typing import Any

from hedgerow.algorithms.core.own_code import GIVEN
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.data import Dataset
from hedgerow.platform.data.content_hash import content_hash, names_hash
from hedgerow.platform.models.vmap_check import compare_constants, fingerprint
from hedgerow.platform.runtime.factory import (
    Data,
    build_module,
    build_partition,
    build_teacher,
    check,
    normalisation_hash,
)
from hedgerow.platform.tracking.run_folder import RunFolder


def data_record(experiment: Experiment, data: Data, own: bool) -> dict[str, Any]:
    """Entry `data` of a run's run.json: names and content hashes, also of the model's frozen parameters and buffers, of
    the data set's normalisation and class names, and of a teacher from another run.

    own: whether the caller passed the arrays. `drawn` in the record is whether the partition is the one that the file
    and its seed describe; this holds for every run on the data of its file.
    """
    dataset, partition = data
    is_drawn, partition_hash = True, content_hash(partition)
    if own:
        try:
            is_drawn = content_hash(build_partition(experiment, dataset)) == partition_hash
        except UserError:
            is_drawn = False
    record: dict[str, Any] = {"name": dataset.name, "dataset": content_hash(dataset), "partition": partition_hash}
    record |= {"drawn": is_drawn, "own": own, "teacher": teacher_fingerprint(experiment, data)}
    record |= {"normalisation": normalisation_hash(dataset), "class_names": names_hash(dataset.class_names)}
    model = experiment.task.model
    has_constants = model.is_foreign or model.init is not None
    constants = build_module(experiment, dataset).constants if has_constants else None
    return record | ({"frozen": constants} if constants else {})


def teacher_fingerprint(experiment: Experiment, data: Data) -> str | None:
    """Fingerprint of a teacher that comes from a run; None without such a teacher."""
    config = experiment.task.teacher
    if config is None or config.run is None:
        return None
    module = build_teacher(config, *data, experiment.seed)
    return fingerprint([*module.named_parameters(), *module.named_buffers()])


def loop_note(experiment: Experiment, dataset: Dataset) -> dict[str, str]:
    """Entry `no_vmap` of run.json: which clients run one after the other, and why; {} if all can be batched."""
    module: Any = build_module(experiment, dataset)
    reason, mode = module.no_vmap, module.train_mode
    if not reason and mode is not None and not mode.takes_padding:
        reason = "with padded mini-batches, padding would enter the statistics of the model"
    return {"no_vmap": reason} if reason else {}


def same_data(folder: RunFolder, experiment: Experiment, given: Data | None, fix: str = "resume") -> Data:
    """Data and partition of a run: the given ones, or those that its file names.

    fix: function of this package that takes the arrays, for messages. Raises UserError if they, or the frozen
    parameters of the model, differ from those that the run started with, which a run records before its first round;
    and if a run that is resumed would have another teacher.
    """
    record = folder.record()
    entry, root = record.get("data"), record.get("data_root")
    try:
        data = check(experiment, Path(root) if root else None, given)
    except UserError:
        if not entry or not entry["own"] or given:
            raise
        differences = ["data set"]
    else:
        if not entry:
            return data
        now = {"data set": content_hash(data[0]), "partition": content_hash(data[1])}
        before = {"data set": entry["dataset"], "partition": entry["partition"]}
        # The partition of a trial that searches over partitions is not recorded: its configuration determines it.
        differences = [name for name in now if before[name] not in (None, now[name])]
        if not differences:
            if folder.constants:
                compare_constants(build_module(experiment, data[0]), folder.constants)
            teacher = experiment.task.teacher
            if teacher and fix == "resume" and entry.get("teacher") != teacher_fingerprint(experiment, data):
                raise UserError(
                    f"task.teacher.run: the model of {teacher.run} is not the one from which {folder.path} "
                    "learns; restore its checkpoints, or start a new run"
                )
            return data
    names = " and the ".join(differences)
    verb = "differ" if len(differences) > 1 else "differs"
    call = f"`hedgerow.{fix}({str(folder.path)!r}, data=(dataset, partition))`"
    if given:
        raise UserError(
            f"{folder.path}: the {names} in data= {verb} from what the run started with; pass the same arrays"
        )
    if entry["own"]:
        raise UserError(
            f"{folder.path} was run on the caller's arrays, not on the data in its file; pass them again: {call}"
        )
    if GIVEN.fullmatch(experiment.task.data.name):
        raise UserError(f"{folder.path}: the {names} in data= {verb} from what it started with; pass the same data")
    raise UserError(
        f"{folder.path}: the {names} of its file {verb} from what the run started with; restore the files of "
        f"task.data, or pass the arrays: {call}"
    )
