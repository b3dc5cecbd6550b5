"""A run goes on with the arrays that it began with, or not at all."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from helpers import blobs
from ray_runs import same, small
from searches import plan

import hedgerow
from hedgerow.cli import main
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data.content_hash import content_hash
from hedgerow.platform.runs import runner
from hedgerow.platform.runs.own_data import data_record
from hedgerow.platform.runs.seed_groups import group_by_seed
from hedgerow.platform.runtime.factory import build_partition, check
from hedgerow.platform.tracking.run_description import data_digest, run_text, tags
from hedgerow.platform.tracking.run_folder import RunFolder, new_run
from hedgerow.reports.sections.report_data import read_all

SETTINGS = {
    "rounds": 6,
    "resources__executor": "inline",
    "checkpoints__every": 1,
    "task__partition": {"kind": "iid", "clients": 12},
}


@pytest.fixture(autouse=True)
def each_round(monkeypatch):
    """The driver hears of every round by itself."""
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)


def own(experiment, seed=0):
    """Arrays that no file names, and the partition that the file describes."""
    dataset = blobs(seed=seed)
    return dataset, build_partition(experiment, dataset)


def altered(dataset):
    """The same but for one bit of one sample."""
    x = dataset.x_train.copy()
    x.view(np.uint32)[0, 0] ^= 1
    return replace(dataset, x_train=x)


def stop(record):
    if record["round"] == 3:
        raise RuntimeError("stopped")


def test_a_run_on_arrays_of_its_own_goes_on_with_these_alone(tmp_path):
    experiment = small(tmp_path / "calm", **SETTINGS)
    dataset, partition = own(experiment)
    calm = hedgerow.run(experiment, data=(dataset, partition), show=False)
    with pytest.raises(RuntimeError, match="stopped"):
        hedgerow.run(small(tmp_path / "runs", **SETTINGS), data=(dataset, partition), show=stop)
    (folder,) = (tmp_path / "runs").glob("small-*")
    known = json.loads((folder / "run.json").read_text())["data"]
    assert len(known.pop("normalisation")) == len(known.pop("class_names")) == 64
    assert known == {
        "name": "test",
        "teacher": None,
        "dataset": content_hash(dataset),
        "partition": content_hash(partition),
        "drawn": True,
        "own": True,
    }

    fix = rf"hedgerow\.resume\('{folder}', data=\(dataset, partition\)\)"
    refused = CliRunner().invoke(main, ["resume", str(folder)])
    assert refused.exit_code == 2
    assert (
        f"hedgerow: {folder} was run on the caller's arrays, not on the data in its file; pass them again: "
        in refused.output
    )
    with pytest.raises(UserError, match=fix):
        hedgerow.resume(folder, show=False)
    order = partition.order.copy()
    order[:2] = order[1::-1]
    other = replace(partition, order=order)
    for data, what in (
        ((altered(dataset), partition), "the data set in data= differs"),
        ((dataset, other), "the partition in data= differs"),
        ((altered(dataset), other), "the data set and the partition in data= differ"),
    ):
        with pytest.raises(UserError, match=f"{what} from what the run started with; pass the same arrays"):
            hedgerow.resume(folder, show=False, data=data)
    with pytest.raises(UserError, match=r"hedgerow\.load\('.*', data=\(dataset, partition\)\)"):
        _ = hedgerow.load(folder).parameters

    # Other objects with the same content, as a new process has them.
    resumed = hedgerow.resume(folder, show=False, data=own(experiment))
    assert same(resumed, calm)
    again = hedgerow.load(folder, data=own(experiment)).parameters
    assert all(np.array_equal(again[name], calm.parameters[name]) for name in again)


def test_a_run_whose_files_have_changed_is_refused(tmp_path):
    settings = SETTINGS | {"task__partition": {"kind": "iid", "clients": 12, "samples_per_client": 20}}
    with pytest.raises(RuntimeError, match="stopped"):
        hedgerow.run(small(tmp_path, **settings), show=stop)
    (folder,) = map(RunFolder, tmp_path.glob("small-*"))
    known = folder.record()["data"]
    assert (known["name"], known["own"]) == ("digits", False)
    folder.update(data=known | {"dataset": "0" * 64})
    with pytest.raises(UserError, match=r"the data set of its file differs from .*; restore the files of task\.data"):
        hedgerow.resume(folder, show=False)
    folder.update(data=known | {"partition": "0" * 64})
    with pytest.raises(UserError, match="the partition of its file differs"):
        hedgerow.resume(folder, show=False)


def test_a_search_on_arrays_of_its_own_is_not_resumed_on_its_file_s(tmp_path):
    wanted = plan(tmp_path)
    dataset, partition = own(small(tmp_path, **SETTINGS))
    used = check(wanted.experiment, None, (dataset, partition))
    with new_run(wanted.experiment, None, wanted.dump()) as (folder, _):
        folder.update(kind="search", data=data_record(wanted.experiment, used, own=True))
    # Not the partition that its file describes, which has more samples than these arrays.
    assert folder.record()["data"]["drawn"] is False
    refused = CliRunner().invoke(main, ["resume", str(folder)])
    assert refused.exit_code == 2
    assert "was run on the caller's arrays" in refused.output
    with pytest.raises(UserError, match="the data set in data= differs"):
        hedgerow.resume(folder, data=(altered(dataset), partition), show=False)


def test_runs_are_of_one_experiment_when_their_arrays_are_equal(tmp_path):
    runs = {}
    for name, seed, arrays in (("a", 0, 0), ("b", 1, 0), ("c", 1, 5)):
        experiment = small(tmp_path / name, seed=seed, **(SETTINGS | {"rounds": 1}))
        runs[name] = hedgerow.run(experiment, data=own(experiment, arrays), show=False).folder
    groups, notes = group_by_seed(read_all([str(folder) for folder in runs.values()]).runs)
    assert [[run.folder.path for run in group.runs] for group in groups] == [
        [runs["a"].path, runs["b"].path],
        [runs["c"].path],
    ]
    assert not notes
    contents = [runs[name].record()["data"]["dataset"][:8] for name in ("a", "c")]
    assert [group.label for group in groups] == [f"content={content}" for content in contents]
    experiment, record = small(tmp_path / "a", **SETTINGS), runs["a"].record()
    digest, source = data_digest(record, experiment)
    assert digest == f"{record['data']['dataset'][:8]}-{record['data']['partition'][:8]}"
    assert json.loads(source)["content"] == record["data"]
    assert data_digest(runs["c"].record(), experiment)[0] != digest
    assert tags(record, experiment)["dataset"] == "test"
    assert "learns `mlp` on `test`" in run_text(runs["a"])


def test_a_mistake_in_a_data_set_is_refused(tmp_path):
    experiment = small(tmp_path / "runs", **SETTINGS)
    dataset, partition = own(experiment)
    large = replace(dataset, x_train=255 * dataset.x_train)
    for field, value, sentence in (
        ("std", np.full(dataset.sample_shape, 0.5, np.float32), "but its samples have"),
        ("std", np.zeros(dataset.sample_shape, np.float32), "has a `std` with NaN, infinity or a deviation that is"),
        ("mean", np.zeros(3, np.float32), "has a `mean` that does not broadcast against samples of shape"),
        ("x_test", np.full_like(dataset.x_test, np.nan, np.float32), "has NaN or infinity in x_test, sample 0; remove"),
    ):
        with pytest.raises(UserError, match=rf"data=: the data set has .*{field}") as caught:
            hedgerow.run(experiment, data=(replace(large, **{field: value}), partition), show=False)
        assert sentence in str(caught.value)
