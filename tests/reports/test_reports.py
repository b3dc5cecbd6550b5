"""The report of real runs, searches and tables: what it holds, and how it is in a real browser."""

import json
import re
import resource
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from mlflow.tracking import MlflowClient
from reported_runs import small

from hedgerow.cli import main
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.numbers import number, percent
from hedgerow.platform.runs.recorded_run import Run
from hedgerow.platform.runs.seed_groups import group_by_seed
from hedgerow.platform.tracking.mlflow_store import default_uri
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.ui.charts import figure
from hedgerow.reports.page.layout import sections
from hedgerow.reports.page.page import write_page
from hedgerow.reports.sections.report_data import ReportData, read_all
from hedgerow.searchspaces.extra.table_command import run_table, table_searches


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[RunFolder]:
    """Two experiments, two seeds each; the first run is in an MLflow store too."""
    output = tmp_path_factory.mktemp("runs")
    return [
        small(output, name, seed, tracked=(name, seed) == ("plain", 0), **algorithm)
        for name, algorithm in (("plain", {}), ("proximal", {"name": "fedprox", "mu": 0.5}))
        for seed in (0, 1)
    ]


def report(*arguments: object) -> str:
    done = CliRunner().invoke(main, ["report", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def page_file(runs, tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    report(*[folder.path for folder in runs], "-o", file)
    return file


@pytest.fixture(scope="module")
def table(ray_here, tmp_path_factory) -> Path:
    """A line of a table of streams, one method under its own Hedge, at its smallest."""
    output = tmp_path_factory.mktemp("table")
    changed = ["rounds=4", "task.partition.tasks=4", "search.space={algorithm.lr: [0.01, 0.1]}",
               "tracking.enabled=false", "task.model.hidden=[8]", "evaluation.every=2"]  # fmt: skip
    run_table(table_searches("moml/small/digits", changed, ["TOE"], False, output), None, None)
    (folder,) = (output / "tables").iterdir()
    return folder


# ---- what a run keeps ------------------------------------------------------------------------------------------------


def test_a_run_keeps_what_its_report_needs(runs):
    record, partition = runs[0].record(), runs[0].partition()
    accuracies = record["client_accuracies"]
    assert (len(accuracies), accuracies) == (12, sorted(accuracies))
    last = record["summary"]
    assert np.mean(accuracies) == pytest.approx(last["client_accuracy"])
    assert np.mean(accuracies[:2]) == pytest.approx(last["client_accuracy_worst10"])
    clock = record["clock"]
    assert set(clock) == {"training", "evaluation"}
    assert all(seconds > 0 for seconds in clock.values())
    assert sum(clock.values()) <= last["seconds"] <= record["wall_seconds"]
    assert (partition["clients"], partition["samples"], len(partition["counts"])) == (12, 240, 12)
    assert all(sum(row) == 20 for row in partition["counts"])
    assert record["finished"] >= record["created"]


# ---- the page --------------------------------------------------------------------------------------------------------


def test_the_page_has_every_section_and_the_numbers_of_the_runs(runs, page_file):
    text = page_file.read_text()
    for name in ("summary", "curves", "targets", "comparison", "fairness", "partition", "ledger", "time",
                 "environment", "files"):  # fmt: skip
        assert f'<section id="{name}"' in text, name
    both = [folder.record()["summary"]["test_accuracy"] for folder in runs[:2]]
    assert f"{100 * np.mean(both):.1f} ± {percent(np.std(both, ddof=1))}" in text
    assert runs[0].record()["versions"]["torch"] in text
    assert "samples_per_client: 20" in text
    # Targets: one that all reach and one that none does.
    assert "To 20 % test accuracy" in text
    assert "6+" in text


def test_a_target_of_one_file_is_looked_for_in_runs_of_the_others(runs, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(runs[2].path, other)
    values = yaml.safe_load((other / "experiment.yaml").read_text())
    values["evaluation"]["targets"] = [0.01]
    (other / "experiment.yaml").write_text(yaml.safe_dump(values))
    RunFolder(other).update(status="finished")
    material = read_all([str(runs[0].path), str(other)])
    (section,) = (one for one in sections(material, group_by_seed(material.runs)[0]) if one.name == "targets")
    told = {part.title: part.cells["reached"] for part in section.parts}
    assert told["To 1 % test accuracy"] == ["1 of 1", "1 of 1"]
    assert told["To 99 % test accuracy"] == ["0 of 1", "0 of 1"]


def without(run: Run, *keys: str) -> Run:
    """The same run without some of what its rounds say."""
    return replace(run, records=[{k: v for k, v in r.items() if k not in keys} for r in run.records])


def test_counts_are_means_over_seeds_as_the_page_says(runs):
    one, other = (run for run in read_all([str(folder.path) for folder in runs[:2]]).runs)
    # The second has done two rounds more, and sent twice as much in each.
    more = [r | {"round": r["round"] + 2, "transmissions": r["transmissions"] + 2} for r in other.records[-2:]]
    more[0]["dropped"] += 1
    longer = [r | {"bytes_up": 3 * r["bytes_up"]} for r in [*other.records, *more]]
    groups = group_by_seed([one, replace(other, records=longer)])[0]
    spent = [run.summary["transmissions"] for run in groups[0].runs]
    assert spent[0] != spent[1]
    found = {section.name: section for section in sections(ReportData(runs=groups[0].runs), groups)}
    row, sent = (found[name].parts[-1].texts[0] for name in ("summary", "ledger"))
    assert (row["rounds"], row["transmissions"]) == ("7", number(np.mean(spent)))
    assert row["sent"] == number(float(np.mean([run.summary["bytes"] for run in groups[0].runs])), "B")
    (never,) = (part for part in found["targets"].parts if part.title == "To 99 % test accuracy")
    assert never.texts[0]["rounds"] == "7+"
    assert sent["transmissions per round"] == number(sum(spent) / 14)
    assert sent["left out"] == "0.5"


def test_the_worst_tenth_of_twelve_clients_are_two_of_them(runs):
    (run,) = read_all([str(runs[0].path)]).runs
    given = replace(run, record=run.record | {"client_accuracies": [k / 20 for k in range(12)]})
    groups = group_by_seed([given])[0]
    (fairness,) = (part for part in sections(ReportData(runs=groups[0].runs), groups) if part.name == "fairness")
    (row,) = fairness.parts[-1].texts
    assert {key: row[key] for key in ("lowest", "worst 10 %", "median", "highest")} == {
        "lowest": "0.0 %", "worst 10 %": "2.5 %", "median": "27.5 %", "highest": "55.0 %"
    }  # fmt: skip


def test_histograms_cover_all_clients_and_all_seeds(runs):
    one, other = read_all([str(folder.path) for folder in runs[:2]]).runs
    # Of more than 1000 clients, 1000 quantiles are recorded.
    recorded = {"client_accuracies": [0.72] * 250 + [0.93] * 750}, {"client_accuracies": [0.72, 0.93]}
    counts = {"staleness_count_0": 3}, {"staleness_count_0": 1, "staleness_count_1": 2}
    given = [
        replace(run, record=run.record | shown, records=[run.records[-1] | updates])
        for run, shown, updates in zip((one, other), recorded, counts, strict=True)
    ]
    groups = group_by_seed(given)[0]
    parts = {part.title: part for section in sections(ReportData(runs=given), groups) for part in section.parts}
    clients, updates = (
        parts[f"{title}: {groups[0].label}"] for title in ("Clients by accuracy", "Staleness of updates")
    )
    heights = [bar.get_height() for bar in figure([clients]).axes[0].patches]
    assert (heights[14], heights[18], sum(heights)) == (37.5, 62.5, 100)
    assert [bar.get_height() for bar in figure([updates]).axes[0].patches] == [4, 2]


def test_the_page_names_the_runs_that_diverged(runs):
    one, other = (run for run in read_all([str(folder.path) for folder in runs[:2]]).runs)
    warned = replace(other, record=other.record | {"diverged": ["the run diverged: its test loss is inf in round 6"]})
    groups = group_by_seed([one, warned])[0]
    (summary,) = (part for part in sections(ReportData(runs=groups[0].runs), groups) if part.name == "summary")
    assert summary.texts[-1] == "plain, seed 1: the run diverged: its test loss is inf in round 6."


def test_of_runs_that_are_not_evaluated_yet_the_page_says_where_their_files_differ(runs):
    early = [without(run, "test_accuracy") for run in read_all([str(folder.path) for folder in runs]).runs]
    groups = group_by_seed(early)[0]
    (section,) = (one for one in sections(ReportData(runs=early), groups) if one.name == "comparison")
    assert not section.texts
    assert [part.title for part in section.parts] == ["Differences between the files"]


def test_every_picture_is_well_formed_and_says_what_it_is(page_file):
    pictures = re.findall(r"<svg.*?</svg>", page_file.read_text(), re.DOTALL)
    assert len(pictures) >= 10
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        assert root.get("role") == "img"
        named = [root.find(f"*[@id='{root.get(f'aria-{how}')}']") for how in ("labelledby", "describedby")]
        assert [one.tag for one in named] == ["title", "desc"]
        assert all(one.text for one in named)
        assert "nan" not in picture.lower()
        assert not re.search(r"#[0-9a-f]{6}\b", picture)  # no colour but the style's


def test_every_heading_and_every_fold_has_a_name_of_its_own(page_file):
    text = page_file.read_text()
    names = re.findall(r"<th(?: [^>]*)?>(.*?)</th>", text)
    assert names
    assert all(name.strip() for name in names)
    folds = re.findall(r"<summary(.*?)>Numbers</summary>", text)
    titles = re.findall(r"<figcaption>(.*?)</figcaption>", text)
    assert folds == [f' aria-label="Numbers of {title}"' for title in titles]


def test_the_page_asks_for_nothing_outside_itself(page_file):
    text = page_file.read_text()
    assert "default-src 'none'" in text
    assert not re.search(r"(src|href)\s*=\s*\"(?!#|data:,)", text)
    assert "url(" not in text.replace("url(#", "")


def test_of_a_single_run_the_page_lies_in_its_folder(runs):
    output = report(runs[3].path)
    assert f"report: {runs[3].path / 'report.html'}" in output
    text = (runs[3].path / "report.html").read_text()
    assert "±" not in text.split("<section", 2)[1]
    assert 'id="comparison"' not in text


def test_a_page_for_which_the_disk_has_no_room_leaves_the_one_before(tmp_path):
    file, limits = tmp_path / "report.html", resource.getrlimit(resource.RLIMIT_FSIZE)
    write_page("before", file)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"--output: cannot write .*report.html \(File too large\)"):
            write_page(2000 * "x", file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]
    assert file.read_text() == "before"


def test_of_a_run_that_is_named_under_runs_the_page_lies_in_its_folder_too(runs, tmp_path, monkeypatch):
    shutil.copytree(runs[3].path, tmp_path / "runs" / "mine")
    monkeypatch.chdir(tmp_path)
    assert "report: runs/mine/report.html" in report("mine", "--no-mlflow")
    assert (tmp_path / "runs" / "mine" / "report.html").exists()


def test_the_page_is_an_artifact_of_the_run_and_a_store_that_is_gone_a_warning(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report(runs[0].path, runs[1].path, "-o", "one.html")
    client, run_id = MlflowClient(default_uri(runs[0].path.parent)), runs[0].record()["mlflow_run_id"]
    assert "report/one.html" in [file.path for file in client.list_artifacts(run_id, "report")]
    moved = tmp_path / "elsewhere" / runs[0].name
    shutil.copytree(runs[0].path, moved)
    done = CliRunner().invoke(main, ["report", str(moved)])
    assert done.exit_code == 0
    assert "warning: MLflow did not accept the page" in done.output
    assert (moved / "report.html").exists()
    assert list((tmp_path / "elsewhere").iterdir()) == [moved]


@pytest.mark.exhaustive("processes")
def test_a_table_of_streams_shows_hedge_and_the_published_numbers(table, tmp_path):
    report(table, "-o", tmp_path / "table.html")
    text = (tmp_path / "table.html").read_text()
    for words in ("moml/small", "Hedge's weights by round", "Hedge's regret by round", "best in hindsight",
                  "Accuracy on new tasks, mean so far (CTM)", "lr=0.01", "lr=0.1"):  # fmt: skip
        assert words in text.replace("&#39;", "'"), words
    assert 'id="ledger"' not in text


@pytest.mark.exhaustive("processes")
def test_a_search_is_compared_by_what_hedge_itself_achieves(table):
    (folder,) = table.parent.parent.glob("moml-*")
    expert = folder / "experts" / "000"
    done = CliRunner().invoke(main, ["compare", str(folder), str(expert), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["metric"] == "ctm"
    (search,) = read_all([str(folder)]).searches
    hedge = [record["expected"]["test_accuracy"] for record in search.hedge]
    alone = [record["test_accuracy"] for record in search.trials[0].records]
    for group, accuracies in zip(found["groups"], (alone, hedge), strict=True):
        assert group["quantities"]["CTM"]["values"] == [pytest.approx(np.mean(accuracies))]
    assert {pair["says"] for pair in found["pairs"]} == {"one seed: no conclusion possible"}


def test_runs_are_compared_in_words(runs):
    done = CliRunner().invoke(
        main, ["compare", *(str(f.path) for f in runs), "--target", "0.2"], catch_exceptions=False
    )
    assert done.exit_code == 0
    for words in ("plain", "proximal", "transmissions to 20 %", "95 % confidence", "±"):
        assert words in done.output


BAD = [
    (["report", "nowhere"], "nowhere is not a run"),
    (["compare", "{0}", "{1}"], "only one experiment, plain, with seeds 0, 1; also name runs of another one"),
    (["compare", "{0}", "{2}", "--metric", "acuracy"], "--metric: none of these runs has 'acuracy'"),
    (["report", "{0}", "-o", "{0}/run.json/x.html"], "--output: cannot write"),
    (["report", "torn"], "is damaged"),
    (["report", "empty"], "has no finished round to report yet"),
    (["report", "unreadable"], "unreadable/experiment.yaml:1: not valid YAML"),
    (["compare", "altered"], "altered/experiment.yaml is not the file with which the run finished (it is too long)"),
]


@pytest.mark.parametrize(("arguments", "sentence"), BAD, ids=[bad[1] for bad in BAD])
def test_bad_input_ends_in_one_sentence_and_exit_code_2(arguments, sentence, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("torn", "empty", "unreadable", "altered"):
        shutil.copytree(runs[0].path, tmp_path / name)
    (tmp_path / "torn" / "run.json").write_text('{"name": ')
    (tmp_path / "empty" / "metrics.jsonl").write_text("")
    (tmp_path / "unreadable" / "experiment.yaml").write_text("- {")
    RunFolder(tmp_path / "unreadable").update(status="finished")
    with (tmp_path / "altered" / "experiment.yaml").open("a") as file:
        file.write("# a comment\n")
    done = CliRunner().invoke(main, [one.format(*(folder.path for folder in runs)) for one in arguments])
    assert done.exit_code == 2, done.output
    (line,) = done.output.splitlines()
    assert line.startswith("hedgerow: ")
    assert sentence in line


# ---- in a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(browser, page_file):
    """Opens a page; whatever it complains of, or asks for outside its file, fails the test."""
    troubles: list[str] = []
    contexts = []

    def see(file: Path = page_file, width: int = 1280, scheme: str = "light"):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme))
        # On a busy machine all takes its time.
        contexts[-1].set_default_timeout(200_000)
        page = contexts[-1].new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: (troubles.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: request.url == file.as_uri() or troubles.append(request.url))
        page.goto(file.as_uri())
        return page

    yield see
    for context in contexts:
        context.close()
    assert troubles == []


def test_the_figures_are_drawn_and_named(opened):
    page = opened()
    for svg in page.locator("figure svg").all():
        box = svg.bounding_box()
        assert box["width"] > 300
        assert box["height"] > 80
    # As a screen reader finds them, and every one with its numbers.
    assert page.get_by_role("img", name="Test accuracy by round").count() == 1
    assert page.locator("figure").count() == page.locator("figure details table").count()
    line = page.locator("svg g:has(> title) path").first
    strokes = (
        page.locator("figure svg")
        .first.locator("g:has(> title) path")
        .evaluate_all("all => all.map(e => getComputedStyle(e).stroke)")
    )
    # The first one is drawn last, on top of the others.
    assert strokes == ["rgb(213, 94, 0)", "rgb(0, 114, 178)"]
    assert line.evaluate("e => e.getTotalLength()") > 100


def test_tables_are_sorted_by_a_click(opened):
    page = opened()
    table = page.locator("#ledger > .parts > .wide table")
    first = lambda: table.locator("tbody td:first-child").all_inner_texts()  # noqa: E731
    assert first() == ["plain", "proximal"]
    heading = table.locator("th").first
    heading.get_by_role("button").click()
    assert (heading.get_attribute("aria-sort"), first()) == ("ascending", ["plain", "proximal"])
    heading.get_by_role("button").press("Enter")
    assert (heading.get_attribute("aria-sort"), first()) == ("descending", ["proximal", "plain"])


def test_numbers_are_sorted_by_size_and_what_is_none_last(opened):
    page = opened()
    texts = ["1,200 MB", "-", "0.9 MB", ">12 MB", "3e-06 MB"]
    page.evaluate(
        "texts => { const body = document.querySelector('#ledger table tbody'), table = body.parentElement;"
        "table.rows[0].cells[0].className = 'n';"
        "body.replaceChildren(...texts.map(t => { const r = document.createElement('tr');"
        "r.append(document.createElement('td')); r.cells[0].textContent = t; return r; })); }",
        texts,
    )
    button = page.locator("#ledger table").first.locator("th button").first
    found = []
    page.locator("#ledger details summary").first.click()
    for _ in range(2):
        button.click()
        found.append(page.locator("#ledger table").first.locator("td").all_inner_texts())
    ascending = ["3e-06 MB", "0.9 MB", ">12 MB", "1,200 MB"]
    assert found == [[*ascending, "-"], [*ascending[::-1], "-"]]


def test_dark_is_dark_and_light_is_light(opened):
    shades = {}
    for scheme in ("light", "dark"):
        page = opened(scheme=scheme)
        for place in ("body", "#summary"):
            colour = page.locator(place).evaluate("e => getComputedStyle(e).backgroundColor")
            ink = page.locator(place).evaluate("e => getComputedStyle(e).color")
            shades[scheme, place] = [sum(map(int, re.findall(r"\d+", one)[:3])) / 765 for one in (colour, ink)]
    for place in ("body", "#summary"):
        assert shades["light", place][0] > 0.9 > 0.3 > shades["light", place][1]
        assert shades["dark", place][0] < 0.2 < 0.8 < shades["dark", place][1]


def test_on_a_telephone_nothing_is_wider_than_the_screen(opened, table, tmp_path):
    report(table, "-o", tmp_path / "table.html")
    for page in (opened(width=390), opened(tmp_path / "table.html", width=390)):
        for fold in page.locator("summary").all():
            fold.click()
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        # Pictures shrink; a table that is too wide is moved within its own frame.
        assert page.locator("figure svg").first.bounding_box()["width"] < 390


def test_names_in_files_are_texts_and_nothing_else(opened, runs, tmp_path):
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>\"'&{{ 7 * 7 }}"
    folder = RunFolder(tmp_path / "evil")
    shutil.copytree(runs[0].path, folder.path)
    values = yaml.safe_load(folder.experiment.read_text())
    folder.experiment.write_text(yaml.safe_dump(values | {"name": evil, "rounds": 7}))
    partition = folder.partition()
    folder.keep_partition(partition | {"class_names": [evil] * len(partition["class_names"])})
    folder.update(status=evil, command=[evil], git_commit=evil, versions={evil: evil})
    report(folder.path, runs[2].path, "--no-mlflow", "-o", tmp_path / "evil.html")
    page = opened(tmp_path / "evil.html")
    assert evil in page.title()
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 1
    assert page.locator("#summary td", has_text="onerror").first.inner_text().startswith("<img src=x")
