"""Body of the command `watch`: follows a run or a search by reading its files."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.yaml_reader import parse_yaml
from hedgerow.platform.storage.atomic_file import write_whole
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.storage.sealed_json import RESTORE_FIX, unseal
from hedgerow.platform.tracking.run_folder import RunFolder, find_run
from hedgerow.platform.ui.terminal import Progress
from hedgerow.reports.page.page import render_page
from hedgerow.reports.sections.report_data import read_all
from hedgerow.searchspaces.results.finished_search import read_trials
from hedgerow.searchspaces.results.trials import trial_labels
from hedgerow.searchspaces.spaces.search_file import read_search
from hedgerow.searchspaces.tune.search_command import search_table

RUNNING = "running"

REFRESH = 15
"""Seconds after which a browser loads the page of a running run again."""


class NewRecords:
    """Reads the records that were appended to a file since the last call."""

    def __init__(self, file: Path):
        self._file = file
        self._position = 0

    def read(self) -> list[RoundRecord]:
        """New records. After a resume that removed rounds, the file is read again from its beginning."""
        try:
            with self._file.open("rb") as stream:
                if stream.seek(0, 2) < self._position:
                    self._position = 0
                stream.seek(self._position)
                text = stream.read()
        except FileNotFoundError:
            return []
        # The last line may be incomplete.
        whole = text[: text.rfind(b"\n") + 1]
        self._position += len(whole)
        try:
            return [unseal(json.loads(line)) for line in whole.splitlines()]
        except ValueError as error:
            raise UserError(f"{self._file} is damaged (a line {error}); {RESTORE_FIX}") from None


def watch(name: str, page: bool, seconds: float) -> int:
    """Follow a run or a search until it ends, or until Ctrl-C; returns the exit code. Raises UserError.

    page: write the report again and again, in place of the display on the terminal. seconds: between two looks.
    """
    folder = find_run(name)
    follow = _page if page else _search if "search" in _values(folder) else _run
    try:
        for _ in follow(folder):
            time.sleep(seconds)
    except KeyboardInterrupt:
        click.echo(f"\n{folder.path} keeps running; `hedgerow watch {name}` follows it again", err=True)
        return 0
    status = folder.status
    hint = f"; `hedgerow resume {name}` continues it" if status != "finished" else ""
    click.echo(f"{folder.path}: {status}{hint}")
    return 0


def _values(folder: RunFolder) -> dict[str, Any]:
    """The resolved file. That of a search has the section `search`; the record says so only after a moment."""
    values, _ = parse_yaml(folder.experiment.read_text(encoding="utf-8"), lambda n: f"{folder.experiment}:{n}")
    return dict(values)


def _run(folder: RunFolder) -> Iterator[None]:
    """Shows the rounds of a run; yields whenever nothing new can be shown."""
    values = _values(folder)
    records = NewRecords(folder.metrics)
    with Progress(str(values["name"]), int(values["rounds"])) as progress:
        ended = False
        while not ended:
            # Read before the records: none is missed.
            ended = folder.status != RUNNING
            for record in records.read():
                progress(record)
            if not ended:
                yield


def _search(folder: RunFolder) -> Iterator[None]:
    """Shows the table of a search; yields whenever nothing new can be shown."""
    hedge = NewRecords(folder.metrics)
    trials: dict[int, NewRecords] = {}
    with search_table(read_search(folder.experiment)) as table:
        ended = False
        while not ended:
            ended = folder.status != RUNNING
            started = {
                int(path.name): RunFolder(path)
                for path in (folder.path / "experts").glob("*")
                if path.name.isdecimal() and RunFolder(path).exists
            }
            started = {index: trial for index, trial in started.items() if index < len(table.labels)}
            if started.keys() - trials.keys():
                named = read_trials(folder)
                for trial, label in zip(named, trial_labels(named), strict=True):
                    if int(trial.name) < len(table.labels):
                        table.labels[int(trial.name)] = label
            for index, trial_folder in sorted(started.items()):
                for record in trials.setdefault(index, NewRecords(trial_folder.metrics)).read():
                    table.trial(index, record)
                table.state(index, trial_folder.status)
            for record in hedge.read():
                table.hedge(record)
            if not ended:
                yield


def _page(folder: RunFolder) -> Iterator[None]:
    """Writes the report, which a browser loads again every few seconds; yields after each page."""
    file = folder.path / "report.html"
    shown = ended = False
    while not ended:
        ended = folder.status != RUNNING
        try:
            html = render_page(read_all([str(folder.path)]))
        except UserError:
            # There is no finished round yet.
            if ended:
                raise
        else:
            if not ended:
                html = html.replace("<head>", f'<head>\n<meta http-equiv="refresh" content="{REFRESH}">', 1)
            write_whole(file, html)
            if not shown:
                click.echo(f"page: {file.resolve()}")
                shown = True
        if not ended:
            yield
