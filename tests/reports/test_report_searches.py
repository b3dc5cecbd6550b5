"""Reports of searches next to runs: Hedge as one learner, and one colour for an experiment throughout."""

import re
import shutil
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from made_up import hedge_records
from mlflow.tracking import MlflowClient
from reported_runs import small

from hedgerow import load
from hedgerow.cli import main
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.runs.comparison import compare
from hedgerow.platform.runs.seed_groups import group_by_seed
from hedgerow.platform.tracking.mlflow_store import default_uri
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.tracking.tracker import RunLog
from hedgerow.reports.page.layout import PageSection, sections, tiles
from hedgerow.reports.page.page import render_page
from hedgerow.reports.page.svg import svg
from hedgerow.reports.sections.curves import curves
from hedgerow.reports.sections.report_data import read_all


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunFolder:
    return small(tmp_path_factory.mktemp("runs"), "plain", 0)


def change(folder: RunFolder, **sections) -> None:
    """Change keys of the resolved file, section by section, as if the run had finished with them."""
    values = yaml.safe_load(folder.experiment.read_text())
    for key, value in sections.items():
        values[key] = values.get(key, {}) | value if isinstance(value, dict) else value
    folder.experiment.write_text(yaml.safe_dump(values))
    if folder.exists:
        folder.update(status="finished")


def searched(run: RunFolder, path: Path, experts: int, seed: int = 0, **algorithm) -> str:
    """A stored Hedge search over learning rates, made of copies of one run; the last expert ends best."""
    rates = [round(0.1 * (i + 1), 1) for i in range(experts)]
    path.mkdir()
    shutil.copy(run.experiment, path)
    change(
        RunFolder(path),
        name=path.name,
        seed=seed,
        algorithm=algorithm,
        search={"space": {"algorithm.lr": rates}, "metric": "test_accuracy"},
    )
    RunFolder(path).update(
        kind="search", status="finished", created=f"2026-{seed}", data_root=None, versions={}, git_commit=None
    )
    hedge = hedge_records(experts, 6)
    for record in hedge:
        record["expected"]["test_accuracy"] -= seed / 10
    RunLog(path / "metrics.jsonl").replace(hedge)
    for i, rate in enumerate(rates):
        expert = RunFolder(path / "experts" / f"{i:03d}")
        shutil.copytree(run.path, expert.path)
        change(expert, name=path.name, seed=seed, algorithm=algorithm | {"lr": rate})
        expert.update(overrides={"algorithm.lr": rate})
        log = RunLog(expert.metrics)
        log.replace([record | {"test_accuracy": i / 100} for record in log.read()])
    return str(path)


def parts(names: list[str]) -> dict[str, PageSection]:
    material = read_all(names)
    return {section.name: section for section in sections(material, group_by_seed(material.all_runs)[0])}


def test_each_hedge_search_has_a_line_of_its_own_and_seeds_a_band(run, tmp_path):
    names = [searched(run, tmp_path / name, 2, seed, clip_norm=norm) for name, seed, norm in
             (("one", 0, None), ("one-again", 1, None), ("two", 0, 5.0))]  # fmt: skip
    found = parts(names)
    accuracy = found["curves"].parts[0]
    of_hedge = {label: kind for kind, label in accuracy.legend if label.startswith("Hedge")}
    assert list(of_hedge) == ["Hedge, expected: one", "Hedge, expected: two"]
    assert len(set(of_hedge.values())) == 2
    assert [one.name for one in accuracy.data.columns][1:3] == list(of_hedge)
    # Of several searches, the tiles have no regret. Of losses 0 and 1/2, Hedge suffers half the weight of the second.
    alone, together = (
        {name: value for name, value, _ in tiles(data, group_by_seed(data.all_runs)[0])}
        for data in map(read_all, (names[:1], names))
    )
    assert alone["regret"] == f"{sum(0.1 ** (t / 2) / (1 + 0.1 ** (t / 2)) for t in range(6)) / 2:.3f}"
    assert "regret" not in together
    # Two seeds have a band.
    assert svg(accuracy).count("fill: var(--s7)") >= 1
    # The same in the search's own figures.
    for name, label in (("search-1", "one"), ("search-2", "one"), ("search-3", "two")):
        losses = next(part for part in found[name].parts if part.title == "Losses by round")
        assert dict(map(reversed, losses.legend))[f"Hedge, expected: {label}"] == of_hedge[f"Hedge, expected: {label}"]


def test_a_search_without_the_folder_of_an_expert_is_refused(run, tmp_path):
    """The other experts would have its numbers."""
    name = searched(run, tmp_path / "one", 3)
    shutil.rmtree(Path(name) / "experts" / "000")
    with pytest.raises(UserError, match=r"experts/000 is missing, so Hedge's records cannot be read; restore it"):
        load(name)


def test_the_first_tile_is_the_selected_configuration_whatever_its_test_score(run, tmp_path):
    path = Path(searched(run, tmp_path / "grid", 3))
    validation = {"fraction": 0.2, "from": "clients"}
    change(RunFolder(path), task={"validation": validation}, search={"kind": "grid", "metric": "validation_accuracy"})
    RunLog(path / "metrics.jsonl").replace([])
    for selecting, tested in (([0.5, 0.9, 0.7], [0.8, 0.6, 0.75]), ([0.5, 0.9, 0.7], [0.6, 0.8, 0.75])):
        for i, (high, test) in enumerate(zip(selecting, tested, strict=True)):
            log = RunLog(path / "experts" / f"{i:03d}" / "metrics.jsonl")
            log.replace(
                [r | {"validation_accuracy": high, "test_accuracy": test, "test_loss": 0.5} for r in log.read()]
            )
        material = read_all([str(path)])
        figures = tiles(material, group_by_seed(material.all_runs)[0])
        scores = f"validation accuracy 90.0 %, test accuracy {100 * tested[1]:.1f} %, test loss 0.500"
        assert figures[0] == ("selected configuration", "lr=0.2", scores)
        assert not any("best" in name for name, _, _ in figures)
        assert f'<dt>selected configuration</dt><dd>lr=0.2</dd><dd class="whose">{scores}</dd>' in render_page(material)


def test_a_trial_that_failed_or_diverged_is_not_selected(run, tmp_path):
    path = Path(searched(run, tmp_path / "hedge", 3))
    # By the weights, the first expert leads.
    experts = [RunFolder(path / "experts" / f"{i:03d}") for i in range(3)]
    assert load(path).best.name == "000"
    experts[0].update(status="failed")
    assert load(path).best.name == "001"
    experts[1].update(diverged=["the run diverged: its test loss is nan in round 6"])
    found = load(path)
    assert found.best.name == "002"
    assert [(row["trial"], row["status"]) for row in found.rows][1:] == [("000", "failed"), ("001", "diverged")]
    assert {row["trial"] for row in found.best_rows} == {"002", None}
    assert found.divergence_warnings == ["1 of 3 trials diverged and cannot win: 001"]
    experts[2].update(status="failed")
    RunFolder(path).update(status="failed")
    found = load(path)
    with pytest.raises(UserError, match=r"hedge has no best trial: all 3 trials failed or diverged: the run diverged"):
        _ = found.best
    assert found.test_score == {}
    assert "all 3 trials failed or diverged" in render_page(read_all([str(path)]))
    assert "winner" not in found.summary
    found.write()
    for expert in experts:
        shutil.rmtree(expert.path)
    RunLog(path / "metrics.jsonl").replace([])
    with pytest.raises(UserError, match="has no best trial: no trial has started"):
        _ = load(path).best


def test_the_page_compares_hedge_as_the_command_does(run, tmp_path):
    names = [str(run.path), *(searched(run, tmp_path / f"s{seed}", 2, seed) for seed in (0, 1))]
    material = read_all(names)
    found = compare(group_by_seed(material.compared)[0])
    assert [group.label for group in found.groups] == ["plain", "s0"]
    (section,) = (one for one in sections(material, group_by_seed(material.all_runs)[0]) if one.name == "comparison")
    assert section.texts == found.notes
    (files,) = section.parts
    assert [one.name for one in files.columns] == ["key", "plain", "s0"]


def test_an_experiment_has_one_colour_in_all_figures(run, tmp_path):
    name = searched(run, tmp_path / "many", 9)
    # The best of them has kept no accuracies of clients.
    best = RunFolder(tmp_path / "many" / "experts" / "008")
    best.update(client_accuracies=None)
    found, colours = parts([name]), defaultdict(set)
    drawn = [part for section in found.values() for part in section.parts if part.kind == "figure"]
    for figure in drawn:
        assert len({kind for kind, _ in figure.legend}) == len(figure.legend), figure.title
        for kind, label in figure.legend:
            colours[label].add(kind)
    assert {label: kinds for label, kinds in colours.items() if len(kinds) > 1} == {}
    # Curves show the winner, and the last by how they end; the search shows the first, by their weights.
    shown = ["lr=0.1 (winner)", *(f"lr=0.{i}" for i in range(4, 10))]
    assert [label for _, label in found["curves"].parts[0].legend] == ["Hedge, expected", *shown]
    assert found["curves"].texts == ["The best 7 of 9 experiments."]
    weights = next(part for part in found["search-1"].parts if part.title == "Hedge's weights by round")
    first = ["lr=0.1 (winner)", *(f"lr=0.{i}" for i in range(2, 8))]
    assert [label for _, label in weights.legend] == [*first, "2 others"]
    losses = next(part for part in found["search-1"].parts if part.title == "Losses by round")
    assert losses.note == "The 7 experts with the largest weights; 2 are left out."
    # Only the winner has a histogram of its clients, and its rows are marked.
    histograms = [part.title for part in found["fairness"].parts if part.title.startswith("Clients by accuracy")]
    assert histograms == ["Clients by accuracy: lr=0.1 (winner)"]
    (summary,) = found["summary"].parts
    assert [summary.rows[i]["experiment"] for i in summary.marked] == ["lr=0.1 (winner)"]
    (table, _) = (part for part in found["search-1"].parts if part.kind == "table")
    assert [table.cells["trial"][i] for i in table.marked] == ["000 (winner)"]
    text = render_page(read_all([name]))
    in_page = re.findall(r'<span class="swatch ([^"]*)" aria-hidden="true"></span>(.*?)</li>', text)
    assert set(in_page) <= {(kind, label) for label, kinds in colours.items() for kind in kinds}


def test_targets_are_drawn_where_their_metric_is(run):
    (one,) = read_all([str(run.path)]).runs
    wanted = one.values["evaluation"] | {"targets": [0.15], "target_metric": "client_accuracy"}
    named = replace(one, values=one.values | {"evaluation": wanted})
    of_loss = [r | {"server_test_loss": 2.0, "client_accuracy_lowest": 0.1} for r in named.records]
    figures = {figure.title: figure for figure in curves(group_by_seed([replace(named, records=of_loss)])[0])}
    assert {"Client loss by round", "Server test loss by round",
            "Client accuracy, lowest by round"} <= set(figures)  # fmt: skip
    assert ">target 15 %<" in svg(figures["Client accuracy by round"])
    assert "target" not in svg(figures["Test accuracy by round"])


@pytest.mark.exhaustive("processes")
@pytest.mark.parametrize("there", [True, False], ids=["at hand", "elsewhere"])
def test_reading_imports_nothing_that_a_file_names(there, tmp_path, monkeypatch):
    tracked = small(tmp_path, "tracked", 0, tracked=True)
    search = searched(tracked, tmp_path / "found", 2)
    for folder in (tmp_path / "found", *(tmp_path / "found" / "experts").iterdir(), tracked.path):
        change(RunFolder(folder), algorithm={"name": "module_of_mine.Mine", "strength": 3})
    if there:
        (tmp_path / "module_of_mine.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    page = str(tmp_path / "page.html")
    for command in (["report", "-o", page], ["compare"]):
        done = CliRunner().invoke(main, [*command, search, str(tracked.path)], catch_exceptions=False)
        assert (done.exit_code, "warning" in done.output) == (0, False), done.output
    client, run_id = MlflowClient(default_uri(tmp_path)), tracked.record()["mlflow_run_id"]
    assert [file.path for file in client.list_artifacts(run_id, "report")] == ["report/page.html"]
    assert load(search).best.name == "000"
    assert "module_of_mine" not in sys.modules
