"""PFL's tables: every line is there, with the numbers and hyperparameters of the source, and a small one runs."""

import json
import re
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from made_up import records, sweep_of

from hedgerow.cli import main
from hedgerow.searchspaces.extra.table_file import family_tables, find_rows
from hedgerow.searchspaces.extra.table_result import SweepResult, devices
from hedgerow.searchspaces.results.trials import Trial

TABLES = family_tables("pfl")
PRINTED = ("T3.1", "T3.2", "TA.5", "TA.6", "TA.7")


def line_of(name: str):
    return find_rows(f"pfl/{name}")[1][0]


def sections(name: str) -> dict[str, dict]:
    table, (line,) = find_rows(f"pfl/{name}")
    made = sweep_of(table, line)
    trials = [made.search.trial(overrides) for overrides in made.search.configurations]
    return dict(zip(made.headings, (trial.algorithm.model_dump() for trial in trials), strict=True))


def test_every_line_of_the_specification_is_there():
    assert {name: len(TABLES[name].rows) for name in PRINTED} == {
        "T3.1": 6, "T3.2": 6, "TA.5": 12, "TA.6": 12, "TA.7": 3,
    }  # fmt: skip
    assert set(TABLES) == {*PRINTED, "small", "alpha", "plain", "oracle"}
    for name in PRINTED:
        for line in TABLES[name].rows:
            assert len(line.published) == 2
            assert all(list(cells) == list(line.methods) for cells in line.published.values())
            assert all(re.fullmatch(r"~?\d+\+?", cell) for cells in line.published.values() for cell in cells.values())


@pytest.mark.parametrize(
    ("name", "target", "cells"),
    [
        ("T3.1/cifar10-5", 0.876, "163 237 436 924 286 794"),
        ("T3.1/cifar100-7", 0.83, "200 224 528 1000+ 976 1000+"),
        ("T3.2/cifar10-3", 0.879, "73 323 184 520 95 792"),
        ("T3.2/cifar10-5", 0.875, "161 846 452 1000+ 341 1000+"),
        ("TA.5/cifar10-3-highest", 1.0, "~83 111 118 874 154 381"),
        ("TA.5/cifar10-7-lowest", 0.76, "123 305 492 742 393 409"),
        ("TA.6/cifar100-7-highest", 0.94, "185 450 272 968 225 1000+"),
        ("TA.6/cifar100-5-lowest", 0.64, "258 243 300 898 153 896"),
        ("TA.7/miniimagenet-5-average", 0.662, "63 137 152 386 83 943"),
    ],
)
def test_the_published_numbers_are_those_of_the_source(name, target, cells):
    assert list(line_of(name).published[target].values()) == cells.split()


def shown(line, accuracies: dict[str, list[float]]) -> SweepResult:
    """As if it had been run."""
    trials = [
        Trial(f"{i:03d}", {}, [r | {"client_accuracy": r["test_accuracy"]} for r in records(values, 1)], "finished")
        for i, values in enumerate(accuracies.values())
    ]
    finished = SimpleNamespace(spec=sweep_of(TABLES["T3.1"], line).search, trials=trials)
    note = {"headings": list(accuracies), "changed": []}
    return SweepResult(line, SimpleNamespace(name="x"), finished, note)  # type: ignore[arg-type]


def test_gains_are_per_fedavgs_cost_in_that_of_pfldyn():
    accuracies = {"PFLDyn Proto": [0.88, 0.89], "P-Avg Proto": [0.8, 0.88, 0.89], "Per-FedAvg": [0.8] * 4 + [0.88]}
    high, low = shown(line_of("T3.1/cifar10-5"), accuracies).rows()
    assert [high[heading] for heading in accuracies] == [
        "2 (1.0 × PFLDyn Proto) [221]", "3 (1.5 × PFLDyn Proto) [783]", "5+ (>2.5 × PFLDyn Proto) [1000+]",
    ]  # fmt: skip
    assert [low[heading] for heading in accuracies] == [
        "1 (1.0 × PFLDyn Proto) [163]", "2 (2.0 × PFLDyn Proto) [286]", "5 (5.0 × PFLDyn Proto) [794]",
    ]  # fmt: skip


def test_hyperparameters_and_settings_are_those_of_the_source():
    for name in ("T3.1/cifar10-3", "TA.6/cifar100-7-lowest", "TA.7/miniimagenet-5-highest"):
        found = sections(name)
        for section in found.values():
            own = {"lr": 0.1, "lr_decay": 0.997, "steps": 50, "batch_size": 50, "weight_decay": 1e-3, "clip_norm": 10.0}
            assert section | own == section
        assert [section["adapt"] for section in found.values()] == ["proto", "maml", "proto", "maml", "proto", "maml"]
        assert {section["alpha"] for section in found.values() if "alpha" in section} == {0.1}
    line = line_of("TA.6/cifar100-7-lowest")
    made = sweep_of(TABLES["TA.6"], line).search.experiment
    assert (made.rounds, made.clients_per_round, made.evaluation.target_metric) == (1000, 0.1, "client_accuracy_lowest")
    dealt = made.task.partition
    assert (dealt.kind, dealt.clients, dealt.labels_per_client, dealt.train, dealt.test) == ("alid", 100, 7, 500, 100)
    assert made.task.model.fc == [384, 192]


def test_grids_are_the_published_ones():
    made = sweep_of(TABLES["T3.1"], line_of("T3.1/cifar10-5"), grid=True)
    assert {heading: made.headings.count(heading) for heading in made.headings} == {
        "PFLDyn Proto": 2, "PFLDyn MAML": 8, "PFLScaf Proto": 1, "PFLScaf MAML": 4, "P-Avg Proto": 1, "Per-FedAvg": 4,
    }  # fmt: skip


def test_studies_have_the_variants_of_the_source():
    published = line_of("alpha/cifar10-5").published[None]
    assert [section["alpha"] for section in sections("alpha/cifar10-5").values()] == pytest.approx(
        [10**-2, 10**-1.5, 10**-1, 10**-0.5, 1]
    )
    assert list(published.values()) == ["89.0%", "89.5%", "90.0%", "89.9%", "89.0%"]
    plain = sections("plain/cifar10-alid-5")
    assert [(s["name"], s["adapt"], s["adapt_in"]) for s in plain.values()] == [
        ("pfldyn", "proto", "training"),
        *((name, "none", "training") for name in ("per_fedavg", "pfldyn", "pflscaf")),
        *((name, "proto", "inference") for name in ("per_fedavg", "pfldyn", "pflscaf")),
        *((name, "maml", "inference") for name in ("per_fedavg", "pfldyn", "pflscaf")),
    ]
    assert [line.published[None]["oracle"] for line in TABLES["oracle"].rows] == ["89.8%", "90.0%", "89.7%"]


def test_devices_are_told_of_where_models_are_personal():
    own, plain = records([0.5, 0.75], 1), records([0.9, 0.9], 1)
    assert devices({"plain": plain}) == {}
    own[-1] |= {"client_accuracy": 0.75, "client_accuracy_highest": 1.0, "client_accuracy_lowest": 0.5}
    assert devices({"own": own}) == {
        "average device, at the end": {"own": "75.0 %"},
        "highest device, at the end": {"own": "100.0 %"},
        "lowest device, at the end": {"own": "50.0 %"},
    }


@pytest.mark.exhaustive("processes")
def test_the_digits_run_and_are_told_of(ray_here, tmp_path):
    changed = ("rounds=3", "tracking.enabled=false", "evaluation.targets=[0.2, 0.999]", "algorithm.steps=3")
    overrides = [word for change in changed for word in ("--set", change)]
    arguments = ["table", "pfl/small/digits-alid-3", "--methods", "pfldyn proto", *overrides]
    done = CliRunner().invoke(main, [*arguments, "--output", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    table = json.loads((tmp_path / "tables" / "pfl-small-digits-alid-3" / "table.json").read_text())
    (line,) = table["lines"]
    assert [cell["transmissions"] for cell in line["targets"]["0.999"]] == [None]
    assert all(cell["transmissions"] >= 1 for cell in line["targets"]["0.2"])
    rows = {row["target"]: row["PFLDyn Proto"] for row in table["rows"]}
    lowest, highest = (rows[f"{what} device, at the end"] for what in ("lowest", "highest"))
    assert 0 < float(lowest.rstrip("%")) < float(highest.rstrip("%"))
