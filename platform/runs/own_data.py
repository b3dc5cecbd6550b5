"""Whether a run goes on with the data that it began with: content hashes in run.json, compared before any work."""

from pathlib import Path
from typing import Any

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.data.content_hash import content_hash
from hedgerow.platform.models.model import CustomModel
from hedgerow.platform.models.vmap_check import compare_constants
from hedgerow.platform.runtime.factory import Data, build_module, build_partition, check
from hedgerow.platform.tracking.run_folder import RunFolder


def data_record(experiment: Experiment, data: Data, own: bool) -> dict[str, Any]:
    """Entry `data` of a run's run.json: names and content hashes, also of the model's frozen parameters and buffers.

    own: whether the caller gave the arrays. drawn, in the record: whether the partition is the one that the file and
    its seed describe, which is so for every run on its file's data.
    """
    dataset, partition = data
    drawn, found = True, content_hash(partition)
    if own:
        try:
            drawn = content_hash(build_partition(experiment, dataset)) == found
        except UserError:
            drawn = False
    record: dict[str, Any] = {"name": dataset.name, "dataset": content_hash(dataset), "partition": found}
    record |= {"drawn": drawn, "own": own}
    is_custom = isinstance(experiment.task.model, CustomModel)
    frozen = build_module(experiment, dataset).constants if is_custom else None
    return record | ({"frozen": frozen} if frozen else {})


def same_data(folder: RunFolder, experiment: Experiment, given: Data | None, fix: str = "resume") -> Data:
    """Data and partition of a run: those that are given, or those that its file names.

    fix: function of this package that takes the arrays, for messages. Raises UserError when they, or the frozen
    parameters of the model, are not what the run began with. Runs that were made
    before content hashes were recorded are not compared.
    """
    record = folder.record()
    known, root = record.get("data"), record.get("data_root")
    try:
        data = check(experiment, Path(root) if root else None, given)
    except UserError:
        if not known or not known["own"] or given:
            raise
        differing = ["data set"]
    else:
        if not known:
            return data
        now = {"data set": content_hash(data[0]), "partition": content_hash(data[1])}
        before = {"data set": known["dataset"], "partition": known["partition"]}
        # The partition of a trial that searches over partitions is not recorded: its configuration decides it.
        differing = [name for name in now if before[name] not in (None, now[name])]
        if not differing:
            if folder.constants:
                compare_constants(build_module(experiment, data[0]), folder.constants)
            return data
    what = " and the ".join(differing)
    verb = "differ" if len(differing) > 1 else "differs"
    call = f"`hedgerow.{fix}({str(folder.path)!r}, data=(dataset, partition))`"
    if given:
        raise UserError(f"{folder.path}: the {what} in data= {verb} from what the run began with; give the same arrays")
    if known["own"]:
        raise UserError(f"{folder.path} was run on arrays of its own, not on what its file names; give them: {call}")
    raise UserError(
        f"{folder.path}: the {what} of its file {verb} from what the run began with; restore the files of task.data, "
        f"or give the arrays: {call}"
    )


def unhashed(folder: RunFolder) -> list[str]:
    """A sentence about a run whose data could not be compared with what it began with."""
    if "data" in folder.record():
        return []
    return [f"{folder.path} has no content hash of its data, so it was not checked that they are still the same"]
