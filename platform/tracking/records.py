"""Reads the JSON files of runs, and reports damaged ones in one sentence."""

import gzip
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hedgerow.platform.common.errors import UserError, first_line
from hedgerow.platform.config.engine_section import StepPlan
from hedgerow.platform.config.validation_errors import objection
from hedgerow.platform.storage.atomic_file import Altered, write_whole
from hedgerow.platform.storage.sealed_json import CHECKSUM, is_cut_off, seal, unseal

RESTORE_FIX = "restore it from a copy, or run the experiment again"
"""Advice about a damaged file."""


class Record(BaseModel):
    """JSON object whose declared keys are validated; other keys are accepted as they are."""

    model_config = ConfigDict(extra="allow", strict=True)


class TableNote(Record):
    """Row of a published table that a search belongs to."""

    line: str
    changed: list[str]
    headings: list[str] = []
    grid: bool = False


class DataRecord(Record):
    """Content hashes of data set, partition, frozen parameters and teacher, see `own_data.data_record`."""

    name: str
    dataset: str
    partition: str | None
    drawn: bool
    own: bool
    frozen: str | None = None
    normalisation: str | None = None
    class_names: str | None = None
    teacher: dict[str, str] = {}


class OwnershipNote(Record):
    """Code and server that the user has named for a run, see `ownership.sealed_ownership`."""

    folders: list[str]
    imports: list[str]
    server: str | None
    seal: str | None


class SeriesNote(Record):
    """Series of runs with different seeds that a run belongs to, see `run_folder.SeedSeries`."""

    name: str
    seeds: list[int] = Field(min_length=1)


class SettingsNote(Record):
    """Settings with which a run continued, in place of those before: dotted path -> [before, now]."""

    time: str
    settings: dict[str, list[Any]]
    round: int | None = None


class BudgetNote(Record):
    """Budget of a search, in `client_rounds` or `seconds`; spent: of it; ended: whether that ended the search."""

    spent: float = Field(ge=0)
    ended: bool
    client_rounds: int | None = None
    seconds: float | None = None


class FileRecord(Record):
    """Length and SHA-256 of a file, see `atomic_file.Fingerprint`."""

    bytes: int
    sha256: str


class Ended(Record):
    """Entries that run.json of a run, a search or a trial may have."""

    status: str
    experiment_file: FileRecord | None = None
    parts: int | None = None
    plans: dict[str, StepPlan] = {}
    data: DataRecord | None = None
    summary: dict[str, Any] = {}
    histograms: dict[str, dict[str, list[int]]] = {}
    client_accuracies: list[float] | None = None
    confusion_matrix: list[list[int]] | None = None
    clock: dict[str, float] = {}
    wall_seconds: float = 0.0
    quarantined: dict[str, int] = {}
    diverged: list[str] = []
    ended: str | None = None
    changes: list[SettingsNote] = []
    mlflow_run_id: str = ""


class TestedNote(Record):
    """Test score of a winner that ended before its last round: number of the trial, and round of its checkpoint."""

    trial: str
    round: int = Field(ge=1)
    scores: dict[str, float]


class RunRecord(Ended):
    """run.json of a run or a search."""

    created: str
    data_root: str | None
    versions: dict[str, str]
    git_commit: str | None
    source_commit: str | None = None
    finished: str = ""
    kind: str = ""
    command: list[str] = []
    packs: list[list[int]] = []
    table: TableNote | None = None
    budget: BudgetNote | None = None
    no_vmap: str = ""
    series: SeriesNote | None = None
    settings: dict[str, Any] = {}
    ownership: OwnershipNote | None = None
    tested: TestedNote | None = None


class CopyRecord(Record):
    """Number of a trial whose model another one took over, the round of that model, and the configurations of the
    rounds up to it and after it.
    """

    donor: int = Field(ge=0)
    round: int = Field(ge=1)
    donor_overrides: dict[str, Any]
    overrides: dict[str, Any]


class TrialRecord(Ended):
    """run.json of a trial of a search.

    copies: how many models of other trials it has taken over. lineage: copies from which its model comes, oldest first.
    """

    overrides: dict[str, Any]
    copies: int = 0
    lineage: list[CopyRecord] = []
    created: str = ""
    finished: str = ""


class LoggedRound(Record):
    """Metrics of one round."""

    __pydantic_extra__: dict[str, float] = Field(init=False)

    round: int = Field(ge=1)


class RunRound(LoggedRound):
    """One line of metrics.jsonl: a round of a run."""

    seconds: float
    transmissions: float
    dropped: float
    scalars_down: float
    scalars_up: float
    bytes_down: float
    bytes_up: float


class DeployedScore(Record):
    """Score of a deployed policy in a round of Hedge. expert: the deployed one; None: a mixture of all."""

    expert: int | None = Field(None, ge=0)
    accuracy: float | None
    loss: float | None


class HedgeRecord(Record):
    """One line of metrics.jsonl of a Hedge search: a round of Hedge. weights, next_weights: p^t and p^(t+1)."""

    __pydantic_extra__: dict[str, float | None] = Field(init=False)

    round: int = Field(ge=1)
    weights: list[float]
    next_weights: list[float]
    losses: list[float | None]
    expected: dict[str, float]
    deployed: dict[str, DeployedScore | None] = {}
    leader: int = Field(ge=0)
    best: int = Field(ge=0)
    hedge_loss: float
    best_loss: float
    regret: float
    bound: float | None
    awake: int | None = Field(None, ge=1)
    price: float | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _one_of_each_expert(self) -> Self:
        experts = len(self.weights)
        if {len(self.losses), len(self.next_weights)} != {experts} or max(self.leader, self.best) >= experts:
            raise ValueError("one weight and one loss for each expert")
        return self


BLOCKS = "blocks.jsonl"
"""Name of the file of the blocks of a search that promotes experts."""


class BlockRecord(Record):
    """One line of blocks.jsonl: a block of work.

    expert, round: expert that trained, and the round that it reached. weights, leader: after the block. hedge_loss:
    mean smoothed loss under the weights before it.
    """

    block: int = Field(ge=1)
    expert: int = Field(ge=0)
    round: int = Field(ge=1)
    weights: list[float]
    leader: int = Field(ge=0)
    hedge_loss: float
    regret: float
    bound: float


class JournalEntry(Record):
    """One line of Hedge's journal: the search; an expert's configuration (and trial), its metrics in a round, or its
    end; the score of the mixture in a complete round; or the weights after it.
    """

    __pydantic_extra__: dict[str, float] = Field(init=False)

    expert: int | None = Field(None, ge=0)
    experts: int | None = Field(None, ge=1)
    metric: str | None = None
    mode: str | None = None
    range: list[float] | None = None
    configuration: str | None = None
    round: int | None = Field(None, ge=1)
    retired: bool | None = None
    mixed: int | None = Field(None, ge=1)
    trial: str | None = None
    complete: int | None = Field(None, ge=1)
    weights: list[float] | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        of_expert = [value for value in (self.configuration, self.round, self.retired) if value is not None]
        others = sum(value is not None for value in (self.experts, self.mixed, self.complete))
        if len(of_expert) + others != 1 or (self.expert is None) == bool(of_expert):
            raise ValueError(
                "either `experts`, `mixed`, `complete`, or `expert` with `configuration`, `round` or `retired`"
            )
        if (self.complete is None) != (self.weights is None):
            raise ValueError("`complete` comes with `weights`")
        if self.mixed is not None and not {"accuracy", "loss"} <= (self.model_extra or {}).keys():
            raise ValueError("`mixed` comes with `accuracy` and `loss`")
        return self


class ReportEvent(Record):
    """One line of the journal of reports of a search.

    number: position of the line, from 0. event: a trial was added, started to train, reported, or failed permanently;
    or the scheduler chose the next trial. overrides: proposal of a searcher. result: metrics of a report, with its
    `round`. done: whether the trial has run all its rounds. decision: answer of the scheduler. ends: other trials that
    the scheduler ended. copy_of: copy that the trial continues from.
    """

    number: int = Field(ge=0)
    event: Literal["add", "start", "report", "fail", "choose"]
    trial: int | None = Field(None, ge=0)
    overrides: dict[str, Any] | None = None
    result: dict[str, float] | None = None
    done: bool = False
    decision: str | None = None
    ends: list[int] = []
    copy_of: CopyRecord | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.trial is None) != (self.event == "choose"):
            raise ValueError("`trial` for every event but `choose`")
        if self.event == "report" and ("round" not in (self.result or {}) or self.decision is None):
            raise ValueError("a report has `result` with `round`, and `decision`")
        return self


class PartitionRecord(Record):
    """partition.json, see `data.partition_summary.partition_record`."""

    clients: int = Field(ge=1)
    samples: int
    sizes: list[int] = Field(min_length=1)
    class_names: list[str]
    counts: list[list[int]]


def write_object(file: Path, values: Mapping[str, Any], indent: int | None = None) -> None:
    """Replace a JSON file by an object with its checksum, atomically; compressed if its name ends with .gz.

    indent: as of `json.dumps`.
    """
    text = seal(values, indent) + "\n"
    write_whole(file, gzip.compress(text.encode(), mtime=0) if file.suffix == ".gz" else text)


def read_object(file: Path, model: type[BaseModel]) -> dict[str, Any]:
    """Returns the object in a JSON file of `write_object`. model: schema that it must match. Raises UserError."""
    try:
        return _checked(_text(file), model)
    except ValueError as error:
        raise UserError(f"{file} is damaged ({error}); {RESTORE_FIX}") from None


def read_objects(file: Path, model: type[BaseModel]) -> list[dict[str, Any]]:
    """Returns the objects of a file with one object of `seal` per line. model: schema that each must match.

    A last line that a crash cut off is ignored. Raises UserError.
    """
    try:
        *lines, last = _text(file).split("\n")
    except ValueError as error:
        raise UserError(f"{file} is damaged ({error}); {RESTORE_FIX}") from None
    if not is_cut_off(last):
        lines.append(last)
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(_checked(line, model))
        except ValueError as error:
            raise UserError(f"{file}:{number} is damaged ({error}); remove the line, or {RESTORE_FIX}") from None
    return records


def _text(file: Path) -> str:
    try:
        content = file.read_bytes()
        return (gzip.decompress(content) if file.suffix == ".gz" else content).decode()
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"it is not a complete .gz file: {first_line(error)}") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read ({first_line(error)})") from None


def _checked(text: str, model: type[BaseModel]) -> dict[str, Any]:
    """Returns the object of a JSON text. Raises ValueError with the first mistake."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {first_line(error)}") from None
    if not isinstance(values, dict):
        raise ValueError("it is not an object with keys")
    try:
        model.model_validate({key: value for key, value in values.items() if key != CHECKSUM})
    except ValidationError as error:
        raise ValueError(objection(error)) from None
    try:
        return unseal(values)
    except Altered as error:
        raise ValueError(f"it {error}") from None
