"""Public samples: of no client, the same for all, without labels."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from helpers import blobs, dataset, run_inline, small_task
from own_formats import loaded

from hedgerow.algorithms.core.client_data import BatchSpec
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.platform.data.partitions.class_splits import Labels
from hedgerow.platform.data.partitions.natural_clients import Natural
from hedgerow.platform.data.partitions.random_splits import IID, Dirichlet
from hedgerow.platform.data.public_pool import hold_back, with_public
from hedgerow.platform.runtime.factory import build_data, check, check_task

DATA = blobs(samples=200, classes=4)


def drawn(config, data=DATA, samples=30, seed=0):
    def draw(rest):
        return config.draw(rest.y_train, rest.classes, rest.train_clients, seed)

    return hold_back(data, samples, seed, draw)


@pytest.mark.parametrize(
    "config",
    [
        IID(clients=5, client_test_fraction=0.2, upper_level_fraction=0.2),
        Dirichlet(clients=5, alpha=0.3),
        Labels(clients=8, labels_per_client=2),
        Natural(),
    ],
    ids=lambda config: config.kind,
)
def test_public_samples_are_nobodys_own_and_everybodys(config):
    data = replace(DATA, train_clients=np.arange(150) % 7)
    partition = drawn(config, data)
    assert len(partition.public) == 30
    assert sorted([*partition.order, *partition.public]) == list(range(150))
    for one in (partition, partition.pool()):
        starts, sizes = one.splits()["public"]
        for start, size in zip(starts, sizes, strict=True):
            assert np.array_equal(one.places[start : start + size], partition.public)
        for split in ("train", "validation", "held_out"):
            assert not set(one.rows(split)) & set(partition.public)
            starts, sizes = one.splits()[split]
            assert all(start + size <= len(one.order) for start, size in zip(starts, sizes, strict=True))
        assert np.array_equal(one.rows("public"), partition.public)
    if config.kind == "natural":
        assert all(len(set(data.train_clients[partition.samples(k)])) == 1 for k in range(len(partition)))


def test_the_seed_decides_them_and_their_classes_do_not():
    assert np.array_equal(drawn(IID(clients=5)).public, drawn(IID(clients=3)).public)
    assert not np.array_equal(drawn(IID(clients=5)).public, drawn(IID(clients=5), seed=1).public)
    ordered = replace(DATA, y_train=np.sort(DATA.y_train))
    assert np.array_equal(drawn(IID(clients=5), ordered).public, drawn(IID(clients=5)).public)


def test_wrong_labels_are_those_of_private_samples():
    partition = drawn(IID(clients=5, label_noise=0.5))
    wrong = np.flatnonzero(partition.labels != DATA.y_train)
    assert len(wrong) == 5 * 12
    assert not set(wrong) & set(partition.public)


def test_without_public_samples_partitions_are_what_they_were():
    partition = IID(clients=5).draw(DATA.y_train, 4, None, 0)
    assert partition.places is partition.order
    assert (partition.splits()["public"].sizes == 0).all()
    assert not len(partition.rows("public"))


def test_everybody_draws_the_same_in_all_exchanges_of_a_round():
    partition = drawn(IID(clients=5))
    worker = run_inline(algorithm_class("fedavg"), small_task(DATA), DATA, partition, {}).worker
    specs = {name: BatchSpec(size=8, steps=3, split="public") for name in ("one", "two")}

    def rows(site="clients", clients=(0, 3, 4), key=(0, 1, 0), name="one"):
        indices, mask = worker.samples[site].streams(specs, key, np.array(clients))[name]
        assert indices.shape == mask.shape == (len(clients), 3, 8)
        assert mask.all()
        return indices

    mine = rows()
    assert set(mine.flatten().tolist()) <= set(partition.public.tolist())
    assert len(set(mine[0].flatten().tolist())) == 24
    assert (mine == mine[:1]).all()
    assert (rows(clients=(2,)) == mine[:1]).all()
    assert (rows("pool", (0,)) == mine[:1]).all()
    assert (rows(key=(0, 1, 4)) == mine).all()
    assert (rows(key=(0, 2, 0)) != mine).any()
    assert (rows(key=(1, 1, 0)) != mine).any()
    assert (rows(name="two") != mine).any()


def test_their_labels_are_hidden_from_steps():
    partition = drawn(IID(clients=5))
    worker = run_inline(algorithm_class("fedavg"), small_task(DATA), DATA, partition, {}).worker
    y = worker.samples["pool"].y.numpy()
    assert (y[partition.public] == -1).all()
    assert np.array_equal(y[partition.order], DATA.y_train[partition.order])
    assert (DATA.y_train >= 0).all()


def test_samples_of_another_data_set_lie_behind_the_own():
    other = dataset(np.arange(60, dtype=np.float32).reshape(10, 6), np.arange(10), test=2)
    both = with_public(replace(DATA, train_clients=np.arange(150) % 7), other, 5)
    assert (len(both.x_train), len(both.y_train), both.public, both.classes) == (155, 155, 5, 4)
    assert np.array_equal(both.x_train[:150], DATA.x_train)
    assert {tuple(row) for row in both.x_train[150:]} < {tuple(row) for row in other.x_train}
    partition = drawn(Natural(), both)
    assert partition.public.tolist() == [150, 151, 152, 153, 154]
    assert sorted(partition.order) == list(range(150))
    assert len(with_public(DATA, other, None).x_train) == 158
    with pytest.raises(UserError, match=r"task\.public\.samples: test has 8 training samples, not 9; lower it"):
        with_public(DATA, other, 9)
    with pytest.raises(UserError, match=r"are 5 \(float32\), but samples of test are 6 \(float32\); choose a data set"):
        with_public(DATA, replace(other, x_train=other.x_train[:, :5]), None)


def test_features_of_another_table_are_matched_by_name(tmp_path):
    def table(name, columns):
        rows = [{"age": 20 + i, "dose": i / 4, "sex": "fmx"[i % 3], "ill": i % 2} for i in range(10)]
        lines = [columns, *([str(row[column]) for column in columns] for row in rows)]
        (tmp_path / name).write_text("\n".join(map(",".join, lines)) + "\n")
        return {"name": "csv", "path": name, "label": "ill", "one_hot": ["sex"] if "sex" in columns else []}

    own = loaded(tmp_path, **table("own.csv", ["age", "dose", "sex", "ill"]))
    assert own.input_names == ("age", "dose", "sex=f", "sex=m", "sex=x")
    other = loaded(tmp_path, **table("other.csv", ["ill", "sex", "dose", "age"]))
    assert other.input_names == ("sex=f", "sex=m", "sex=x", "dose", "age")
    public = with_public(own, other, None).x_train[-8:]
    for age, dose, *sex in public.tolist():
        i = int(age - 20)
        assert [dose, *sex] == [i / 4, *(float(i % 3 == number) for number in range(3))]
    narrow = loaded(tmp_path, **table("narrow.csv", ["dose", "sex", "ill"]))
    with pytest.raises(
        UserError, match=r"task\.public\.data: only one of own\.csv and narrow\.csv has the features age; give"
    ):
        with_public(own, narrow, None)
    # Samples without names are matched by position.
    assert np.array_equal(with_public(own, replace(other, input_names=()), None).x_train[-8:], other.x_train)


def csv_file(folder, name, text, **settings):
    (folder / name).write_text(text)
    return loaded(folder, name="csv", path=name, label="ill", test=name, **settings)


def test_a_category_that_no_public_sample_has_is_0(tmp_path):
    own = csv_file(tmp_path, "own.csv", "age,sex,ill\n1,f,0\n2,m,1\n3,x,0\n", one_hot=["sex"])
    other = csv_file(tmp_path, "other.csv", "sex,age,ill\nx,7,0\nf,8,1\n", one_hot=["sex"])
    both = with_public(own, other, None)
    assert own.input_names == ("age", "sex=f", "sex=m", "sex=x")
    assert both.x_train[-2:].tolist() == [[7, 0, 0, 1], [8, 1, 0, 0]]
    assert both.x_train.dtype == np.float32
    with pytest.raises(UserError, match=r"only one of other\.csv and own\.csv has the features sex=m; give"):
        with_public(other, own, None)
    # Neither a column that is missing, nor columns of numbers whose names contain "=".
    for text, names in (
        ("age,ill\n7,0\n8,1\n", "sex=f, sex=m, sex=x"),
        ("sex=f,age,ill\n7,7,0\n8,8,1\n", "sex=m, sex=x"),
    ):
        with pytest.raises(UserError, match=rf"only one of own\.csv and a\.csv has the features {names}; give both"):
            with_public(own, csv_file(tmp_path, "a.csv", text), None)


def test_features_with_one_name_are_not_matched(tmp_path):
    own = csv_file(tmp_path, "own.csv", "a[0],a[1],ill\n1,2,0\n3,4,1\n")
    table = pd.DataFrame({"a": [[1.0, 2.0], [3.0, 4.0]], "a[0]": [5.0, 6.0], "ill": [0, 1]})
    table.to_parquet(tmp_path / "other.parquet")
    other = loaded(tmp_path, name="parquet", path="other.parquet", label="ill", test="other.parquet")
    for one, public in ((own, other), (other, own)):
        with pytest.raises(
            UserError,
            match=r"data: other\.parquet has two features named 'a\[0\]', which cannot be matched; rename one",
        ):
            with_public(one, public, None)


def test_letters_of_another_text_are_matched(tmp_path):
    texts = {"own": "abcde ", "other": "edb", "foreign": "abx"}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text * 20)
    settings = {"name": "text", "by": "block", "clients": 1, "length": 6}
    own, other, foreign = (loaded(tmp_path, path=f"{name}.txt", **settings) for name in texts)
    both = with_public(own, other, None)
    assert both.x_train.dtype == np.uint8
    read = {"".join(both.class_names[token] for token in sample) for sample in both.x_train[-both.public :]}
    assert read == {"edbedb", "dbedbe", "bedbed"}
    with pytest.raises(UserError, match=r"task\.public\.data: only one of own and foreign has the tokens x; give both"):
        with_public(own, foreign, None)


def values(public, algorithm="feddf", **task):
    settings = {"name": "x", "rounds": 1, "clients_per_round": "all", "algorithm": {"name": algorithm}}
    base = {"data": {"name": "digits"}, "partition": {"kind": "iid", "clients": 5}, "model": {"name": "mlp"}}
    return {**settings, "task": {**base, "public": public, **task}}


def test_the_section_of_an_experiment_file():
    data, partition = check(parse_experiment(values({"samples": 100})), None)
    assert len(partition.public) == 100
    assert len(partition.order) == len(data.y_train) - 100
    same = {"data": {"name": "digits", "test_fraction": 0.5}, "samples": 40}
    both, partition = check(parse_experiment(values(same)), None)
    assert len(partition.public) == 40
    assert np.array_equal(both.x_train[partition.order].sum(0), data.x_train.sum(0))


@pytest.mark.parametrize(
    ("public", "algorithm", "words"),
    [
        (
            None,
            "feddf",
            "task.public: feddf needs public samples, at least 1, and there are 0; set `samples: 1`",
        ),
        ({"samples": 639}, "ds_fl", "ds_fl needs public samples, at least 640, and there are 639"),
        ({"samples": 5000}, "fedavg", "task.public.samples: 5000 public samples leave none of the"),
    ],
)
def test_what_does_not_fit_is_refused(public, algorithm, words):
    wanted = parse_experiment(values(public, algorithm))
    with pytest.raises(UserError, match=words):
        check_task(wanted, *build_data(wanted, None))


def test_sections_that_say_nothing_or_are_of_a_stream_are_refused():
    with pytest.raises(UserError, match="give `samples`, the number of training samples to hold back, or `data`"):
        parse_experiment(values({}))
    stream = {"kind": "stream", "tasks": 3, "train": 10, "test": 10}
    with pytest.raises(UserError, match=r"`task\.public` is not supported for a stream; remove it"):
        parse_experiment(values({"samples": 3}, "moml", partition=stream))
