"""Hedge's rounds from losses that arrive in any order: a round is complete once every active expert reported it."""

import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.numbers import percent
from hedgerow.platform.storage.atomic_file import write_whole
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.storage.sealed_json import read_objects, seal
from hedgerow.searchspaces.hedge.deployment import Deployment, Policy, Score, draw, score_names
from hedgerow.searchspaces.hedge.elimination import Elimination
from hedgerow.searchspaces.hedge.weights import AdaHedge, Exp3, Hedge, entropy

SOME = 10
"""Minimum number of rounds before the losses of a single round can count as too far apart."""

CLIPPED = 0.01
"""Fraction of clipped reports above which there is a warning."""

ROUNDING = 1e-6
"""Tolerance for accuracies above 1 or below 0."""


class LossSpread(NamedTuple):
    """Spread (maximum minus minimum) of the losses of a round, over all rounds so far."""

    rounds: int = 0
    total: float = 0.0
    widest: float = 0.0
    round: int = 0
    """Round with the widest spread."""

    def after(self, round: int, losses: np.ndarray) -> "LossSpread":
        """Returns the spread with one more round. losses: losses of the awake experts."""
        width = float(np.ptp(losses)) if len(losses) else 0.0
        wider = (width, round) if width > self.widest else (self.widest, self.round)
        return LossSpread(self.rounds + 1, self.total + width, *wider)

    @property
    def dominates(self) -> bool:
        """Whether the widest spread of at least `SOME` rounds exceeds the sum of all others."""
        return self.rounds >= SOME and self.widest > self.total / 2


class LossScale:
    """Losses of a metric: in [0, 1], or without `range`, of a metric to be minimised, as they are.

    seen, clipped: numbers of values with a range so far, and of those outside it.
    """

    def __init__(self, metric: str, mode: str, range: tuple[float, float] | None):
        self.metric, self.mode, self.range = metric, mode, range
        self.seen = self.clipped = 0

    def check(self, value: float, expert: int, round: int) -> None:
        """Raises UserError when a metric to be maximised, without a range, is not an accuracy between 0 and 1."""
        is_accuracy = self.mode == "max" and self.range is None
        if is_accuracy and math.isfinite(value) and not -ROUNDING <= value <= 1 + ROUNDING:
            raise UserError(
                f"metric: expert {expert} reported {self.metric} = {value:g} in round {round}, but a metric to be "
                "maximised without `range` must be an accuracy between 0 and 1; report a fraction instead of a "
                "percentage, or set `range` (or mode min for a loss)"
            )

    def loss(self, value: float, worst: float) -> float:
        """Returns the loss of a value; `worst` if it is not finite."""
        if not math.isfinite(value):
            return worst
        if self.range is None:
            # A mean of accuracies of 1 may be off by a rounding error.
            return value if self.mode == "min" else min(max(1.0 - value, 0.0), 1.0)
        low, high = self.range
        scaled = ((value - low) if self.mode == "min" else (high - value)) / (high - low)
        self.seen += 1
        self.clipped += not 0 <= scaled <= 1
        return min(max(scaled, 0.0), 1.0)

    @property
    def warning(self) -> str | None:
        """Warning that more than 1 % of the values were outside the range, or None."""
        if self.clipped <= CLIPPED * self.seen:
            return None
        low, high = self.range or (0, 1)
        return (
            f"{percent(self.clipped / self.seen)} of the reported values of {self.metric} were outside the range "
            f"[{low:g}, {high:g}] and were clipped, so Hedge cannot distinguish them; set a wider `range`, or remove it"
        )


class HedgeRounds:
    """Buffers the reports of experts and passes them to Hedge round by round.

    All data are indexed by expert, so the weights do not depend on the order of reports.

    hedge: weights of the experts. metric, mode: objective. range: (low, high) of a metric m, with loss
    (m - low) / (high - low) or, if m is to be maximised, (high - m) / (high - low), clipped to [0, 1]. None: a metric
    to be maximised is an accuracy a in [0, 1], with loss 1 - a; otherwise, the loss is m itself, and `hedge` must be an
    AdaHedge, the only rule that needs no range. A metric that is not finite counts as the worst loss: 1 or, without a
    range, the largest loss so far.
    missing: cost of a failed expert in every later round: the worst loss ("penalise"), or none, with its weight kept
    ("skip"). averaged: metrics whose weighted mean is recorded. journal: file to which every report is appended, and
    from which an interrupted search continues. on_round: called with the record of every complete round. seed: of the
    draws of the policy `sample`. deployment: mixes the predictions of each round and deploys a state; None: there is no
    mixture and nothing is deployed. elimination: stops experts; the weights of a round are then those of the others,
    and the decision is repeated from the journal. None: no expert is stopped.

    Under `deployed`, a record has the accuracy and the loss of the three policies of `deployment.Policy` in the round,
    with p^t over the experts that reported it; None: not reported, or not finite.
    Raises UserError when `mode`, `range` and `hedge` are incompatible.
    """

    def __init__(
        self,
        hedge: Hedge,
        metric: str,
        mode: Literal["max", "min"],
        range: tuple[float, float] | None = None,
        missing: Literal["penalise", "skip"] = "penalise",
        averaged: Sequence[str] = (),
        journal: Path | None = None,
        on_round: Callable[[RoundRecord], None] | None = None,
        seed: int = 0,
        deployment: Deployment | None = None,
        elimination: Elimination | None = None,
    ):
        check_range("range", mode, range, isinstance(hedge, AdaHedge))
        self.hedge, self.metric, self.mode, self.range, self.missing = hedge, metric, mode, range, missing
        self.averaged = list(dict.fromkeys([metric, *averaged]))
        self.on_round, self.seed, self.deployment, self.elimination = on_round, seed, deployment, elimination
        self.latest = np.zeros(hedge.experts, dtype=np.int64)
        self.retired: dict[int, bool] = {}
        self._waiting: dict[int, dict[int, RoundRecord]] = {}
        self._worst = 1.0 if mode == "max" or range else -math.inf
        self.scale = LossScale(metric, mode, range)
        self._spread = LossSpread()
        self.complete = 0
        """Latest complete round; 0: none."""
        self.journal: Path | None = None
        self._configurations: dict[int, str] = {}
        self.trials: dict[int, str] = {}
        """Identifier of each expert's trial, if `enter` was given one."""
        self._mixed: dict[int, Score] = {}
        if journal is not None:
            self.open(journal)

    def open(self, journal: Path) -> None:
        """Continue from a journal, if the file exists, and append every report to it from now on.

        Its first line describes the search. Raises UserError when the file is damaged or belongs to another search.
        """
        self.journal = journal
        entries: list[RoundRecord] = []
        if journal.exists():
            entries = read_objects(journal)
            self._check_head(entries[0] if entries else self._head)
            if not journal.read_bytes().endswith(b"\n"):
                # A crash cut off the last line.
                write_whole(journal, _lines(entries))
        # The predictions of a round are deleted once its mixture is in the journal, which follows the round's reports.
        self._mixed = {entry["mixed"]: Score(entry["accuracy"], entry["loss"]) for entry in entries if "mixed" in entry}
        for entry in entries[1:]:
            self._replay(entry)
        self.settle()
        if not entries:
            self._write(self._head)

    def enter(self, expert: int, configuration: str, trial: str | None = None) -> None:
        """Record the identifiers of an expert's configuration and trial. Raises UserError when the journal has another
        configuration.
        """
        known = self._configurations.get(expert)
        if known not in (None, configuration):
            raise self._stranger(f"expert {expert} has another configuration in it")
        if known is None or self.trials.get(expert) != trial:
            entry = {"expert": expert, "configuration": configuration} | ({} if trial is None else {"trial": trial})
            self._enter(entry)
            self._write(entry)

    def find(self, configuration: str) -> list[int]:
        """Experts with this identifier of a configuration."""
        return [expert for expert, known in self._configurations.items() if known == configuration]

    def _enter(self, entry: RoundRecord) -> None:
        self._configurations[entry["expert"]] = entry["configuration"]
        if "trial" in entry:
            self.trials[entry["expert"]] = entry["trial"]

    def write_standing(self) -> None:
        """Append the weights after the latest complete round to the journal, for `HedgeStanding.read`."""
        hedge, weights = self.hedge, self.weights.tolist()
        self._write({"complete": self.complete, "weights": weights, "regret": hedge.regret, "bound": hedge.bound()})

    def report(self, expert: int, round: int, metrics: RoundRecord) -> None:
        """Record an expert's metrics of one round, and process the rounds that are complete now."""
        self.accept([(expert, round, metrics)])
        self.settle()

    def accept(self, reports: Iterable[tuple[int, int, RoundRecord]]) -> None:
        """Record reports, each an expert, a round and its metrics; rounds that are complete then wait for `settle`.

        Ignores rounds that the expert already reported, rounds without the metric, and retired experts. Raises
        UserError when the metric is not a number or, if maximised without a range, not an accuracy between 0 and 1.
        """
        entries: list[RoundRecord] = []
        try:
            for expert, round, metrics in reports:
                if round <= self.latest[expert] or expert in self.retired or self.metric not in metrics:
                    continue
                known = [name for name in self.averaged if name in metrics]
                values = {name: _number(metrics[name], name, expert, round) for name in known}
                self.scale.check(values[self.metric], expert, round)
                entries.append({"expert": expert, "round": round, **values})
                self._take(expert, round, values)
        finally:
            self._write(*entries)

    def settle(self) -> None:
        """Process all complete rounds in order. Only the state after the last one that is due is deployed."""
        records: list[RoundRecord] = []
        deployed: tuple[int, dict[int, float]] | None = None
        while self._waiting and self._is_complete(round := min(self._waiting)):
            # An expert may have been ahead when it was stopped.
            row = {one: metrics for one, metrics in self._waiting.pop(round).items() if not self.is_stopped(one)}
            if not row:
                continue
            self.complete = round
            present = np.isin(np.arange(len(self.latest)), list(row))
            records.append(self._one_round(round, row, present))
            if self.deployment is not None and self.deployment.is_due(round):
                deployed = round, self._chosen(self.deployment.policy, present & self._running)
        if self.deployment is not None and records:
            if deployed is not None:
                self.deployment.deploy(*deployed)
            self.deployment.forget(records[-1]["round"], range(len(self.latest)))
        if self.on_round is not None:
            for record in records:
                self.on_round(record)

    def retire(self, expert: int, penalised: bool) -> None:
        """Mark an expert as complete. penalised: it failed; otherwise it ended, and sleeps."""
        if expert in self.retired:
            return
        self._write({"expert": expert, "retired": penalised})
        self._drop(expert, penalised)
        self.settle()

    def ahead(self, expert: int) -> int:
        """Number of rounds that the expert is ahead of the slowest active expert."""
        slowest = self._slowest()
        return 0 if slowest is None else int(self.latest[expert]) - slowest

    def is_stopped(self, expert: int) -> bool:
        """Whether elimination has stopped an expert."""
        return self.elimination is not None and expert in self.elimination.stopped

    @property
    def weights(self) -> np.ndarray:
        """Weights (experts,) of the next round, over the experts that have not been stopped."""
        return self.hedge.probs_among(self._running)

    @property
    def _running(self) -> np.ndarray:
        return np.array([not self.is_stopped(expert) for expert in range(len(self.latest))])

    @property
    def warning(self) -> str | None:
        """Warning about losses that keep Hedge from distinguishing experts, or None.

        Either more than 1 % of the reports were outside the range or, without a range, one round outweighs all others.
        """
        if self.mode == "min" and self.range is None and self._spread.dominates:
            return (
                f"the values of {self.metric} in round {self._spread.round} were {self._spread.widest:.3g} apart, more "
                "than in all other rounds together, so Hedge hardly uses the other rounds to distinguish experts; set "
                "`range`"
            )
        return self.scale.warning

    # ---- rounds -------------------------------------------------------------------------------------------------

    def _take(self, expert: int, round: int, kept: RoundRecord) -> None:
        self.latest[expert] = round
        self._waiting.setdefault(round, {})[expert] = kept

    def _drop(self, expert: int, penalised: bool) -> None:
        # An expert is awake in the rounds that were complete before.
        self.settle()
        self.retired.setdefault(expert, penalised)

    def _is_complete(self, round: int) -> bool:
        """Whether all active experts have passed a round."""
        slowest = self._slowest()
        return slowest is None or slowest >= round

    def _slowest(self) -> int | None:
        """Latest round of the slowest active expert; None if no expert is active."""
        active = np.delete(self.latest, list(self.retired)) if self.retired else self.latest
        return int(active.min()) if len(active) else None

    def _one_round(self, round: int, row: dict[int, RoundRecord], present: np.ndarray) -> RoundRecord:
        """Update the weights with a complete round; returns its record. present: mask of the experts in `row`."""
        n = len(self.latest)
        if self.mode == "min" and self.range is None:
            values = [metrics[self.metric] for metrics in row.values()]
            self._worst = max([self._worst, *filter(math.isfinite, values)])
        # Without any finite loss so far, all losses are equal, and any number can stand for them.
        worst = self._worst if math.isfinite(self._worst) else 1.0
        losses = np.full(n, worst)
        awake = np.ones(n, dtype=bool)
        for expert in range(n):
            if expert in row:
                losses[expert] = self.scale.loss(row[expert][self.metric], worst)
            else:
                awake[expert] = self.missing == "penalise" and self.retired.get(expert, False)
        weights = self.weights
        deployed = self._deployed(round, row, present)
        expected = {name: self._mean(name, row) for name in self.averaged}
        self._spread = self._spread.after(round, losses[awake])
        hedge_loss = self.hedge.update(losses, awake)
        compared = {
            "best": self.hedge.best,
            "cumulative_loss": self.hedge.total,
            "best_loss": float(self.hedge.losses.min()),
            "regret": self.hedge.regret,
        }
        bound, stops = self.hedge.bound(), self._stop_experts(present)
        bandit = {"played": self.hedge.played} if isinstance(self.hedge, Exp3) else {}
        return {
            "round": round,
            "weights": weights.tolist(),
            "losses": [float(losses[i]) if awake[i] else None for i in range(n)],
            "hedge_loss": hedge_loss,
            "expected": {name: value for name, value in expected.items() if value is not None},
            "deployed": deployed,
            "leader": int(weights.argmax()),
            **compared,
            "bound": bound,
            "entropy": entropy(weights),
            **bandit,
            **stops,
            # After the round, in which a stopped expert has none.
            "next_weights": self.weights.tolist(),
        }

    def _stop_experts(self, present: np.ndarray) -> RoundRecord:
        """Stop some of the experts that reported a round; returns the number of those that have not been stopped, and
        the price so far, for its record.
        """
        if self.elimination is None:
            return {}
        stopped = self.elimination.after(self.hedge.rounds, self.hedge.losses, present, self._spread.widest)
        # They sleep, no other one waits for them, and regret is against the others.
        self.retired |= dict.fromkeys(stopped, False)
        self.hedge.losses[stopped] = math.inf
        return {"awake": int(self._running.sum()), "price": self.elimination.price}

    def _chosen(self, policy: Policy, present: np.ndarray) -> dict[int, float]:
        """Experts that a policy deploys in the next round, with their weights. present: mask of the experts."""
        weights = self.hedge.probs_among(present)
        if policy == "mixture":
            return {int(expert): float(weights[expert]) for expert in np.flatnonzero(weights)}
        expert = draw(self.seed, self.hedge.rounds, weights) if policy == "sample" else int(weights.argmax())
        return {expert: 1.0}

    def _deployed(self, round: int, row: dict[int, RoundRecord], present: np.ndarray) -> RoundRecord:
        """Accuracy and loss of the deployed policies in a round, before its weights are updated."""
        names = score_names(self.metric)
        scores: RoundRecord = {}
        for policy in ("sample", "leader"):
            (expert,) = self._chosen(policy, present)
            metrics = row[expert]
            scores[policy] = {
                "expert": expert,
                **{kind: _finite(metrics.get(name)) for kind, name in names.items()},
            }
        mixture = self._mixture(round, present)
        return scores | {"mixture": None if mixture is None else mixture._asdict()}

    def _mixture(self, round: int, present: np.ndarray) -> Score | None:
        if self.deployment is None or round in self._mixed:
            return self._mixed.get(round)
        weights = self.hedge.probs_among(present)
        score = self.deployment.mixture(round, {int(i): float(weights[i]) for i in np.flatnonzero(present)})
        if score is not None:
            self._write({"mixed": round, **score._asdict()})
        return score

    def _mean(self, name: str, row: dict[int, RoundRecord]) -> float | None:
        """Mean of a metric under p^t, over the experts that reported a finite value."""
        mask = np.array([math.isfinite(row.get(i, {}).get(name, math.nan)) for i in range(len(self.latest))])
        if not mask.any():
            return None
        return self.hedge.expected([row[i][name] if mask[i] else 0.0 for i in range(len(mask))], mask)

    # ---- the journal --------------------------------------------------------------------------------------------

    def _write(self, *entries: RoundRecord) -> None:
        if self.journal is not None and entries:
            with self.journal.open("a") as file:
                file.write(_lines(entries))

    @property
    def _head(self) -> RoundRecord:
        bounds = list(self.range) if self.range else None
        return {"experts": len(self.latest), "metric": self.metric, "mode": self.mode, "range": bounds}

    def _check_head(self, head: RoundRecord) -> None:
        """Raises UserError if the first line of a journal describes another search."""
        for key, value in self._head.items():
            if head.get(key) != value:
                raise self._stranger(f"`{key}` is {head.get(key)} in it and {value} here")

    def _replay(self, entry: RoundRecord) -> None:
        """Repeat an entry: an expert's configuration, its metrics in a round, or its end. Others need no repetition:
        the score of the mixture in a round, and the weights after it.
        """
        expert = entry.get("expert", 0)
        if expert >= len(self.latest):
            raise self._stranger(f"it contains a report of expert {expert}")
        if "configuration" in entry:
            self._enter(entry)
        elif "retired" in entry:
            self._drop(expert, entry["retired"])
        elif "round" in entry:
            if self.metric not in entry:
                raise self._stranger(f"it contains a report without {self.metric}")
            self._take(expert, entry["round"], {name: entry[name] for name in self.averaged if name in entry})

    def _stranger(self, why: str) -> UserError:
        return UserError(
            f"{self.journal} is not a journal of this search: {why}; restore the right file, or start a new "
            "search in another folder"
        )


def renumber(journal: Path, experts: int) -> None:
    """Set the number of experts of a journal."""
    head, *entries = read_objects(journal)
    entries = [{**head, "experts": experts}, *(entry for entry in entries if "complete" not in entry)]
    write_whole(journal, _lines(entries))


def _lines(entries: Iterable[RoundRecord]) -> str:
    return "".join(seal(entry) + "\n" for entry in entries)


def check_range(place: str, mode: str, range: Sequence[float] | None, scale_free: bool) -> None:
    """Check that losses have the range that Hedge's rule needs.

    place: key or parameter of the range. scale_free: the rule is AdaHedge. Raises UserError.
    """
    if range is not None and not (len(range) == 2 and -math.inf < range[0] < range[1] < math.inf):
        raise UserError(f"{place} takes two finite numbers [low, high] with low < high, not {list(range)}")
    if range is None and mode == "min" and not scale_free:
        raise UserError(
            f"{place}: a loss without a range needs the scale-free rule (`rate: adahedge`, which has no `gamma`); "
            "set a range such as [0, 4.6], or remove `rate` and `gamma`"
        )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _number(value: Any, name: str, expert: int, round: int) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        shown = repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:37]}..."
        raise UserError(
            f"metric: expert {expert} reported {name} = {shown} in round {round}, which is not a number; report one"
        )
    return float(value)
