"""Weights of the trials that a `HedgeScheduler` has weighed, from its journal."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.storage.sealed_json import read_objects

JOURNAL = "hedge.jsonl"
"""Name of the journal in the folder of Tune's experiment."""


@dataclass(frozen=True)
class HedgeStanding:
    """Weights after the latest complete round of a search.

    round: that round. weights: by the identifier of the trial, largest first. failed: identifiers of the trials that
    failed permanently. regret: loss of Hedge minus that of the best trial in hindsight, both summed over the rounds.
    bound: bound on the regret.
    """

    round: int
    weights: dict[str, float]
    failed: frozenset[str]
    regret: float
    bound: float

    @property
    def winner(self) -> str:
        """Identifier of the trial with the largest weight that has not failed. Raises UserError if all have."""
        for trial in self.weights:
            if trial not in self.failed:
                return trial
        raise UserError(f"there is no winner: all {len(self.weights)} trials failed")

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """Reads the journal in the folder of Tune's experiment. Raises UserError when no round is complete."""
        journal = Path(folder) / JOURNAL
        if not journal.is_file():
            raise UserError(f"{folder} has no {JOURNAL}; give the folder of an experiment with a HedgeScheduler")
        entries = read_objects(journal)
        trials = {entry["expert"]: entry["trial"] for entry in entries if "trial" in entry}
        failed = frozenset(trials[entry["expert"]] for entry in entries if entry.get("retired"))
        latest = next((entry for entry in reversed(entries) if "complete" in entry), None)
        if latest is None:
            raise UserError(f"{folder}: {incomplete(len(trials))}")
        weights = {trials[expert]: weight for expert, weight in enumerate(latest["weights"])}
        ordered = dict(sorted(weights.items(), key=lambda item: -item[1]))
        return cls(latest["complete"], ordered, failed, latest["regret"], latest["bound"])


def incomplete(trials: int) -> str:
    """Sentence about a search that ended before its first complete round."""
    return (
        f"Hedge has no weights, because no round is complete: not all {trials} trials have reported the metric in "
        "their first round; give the search more time, or fewer trials"
    )
