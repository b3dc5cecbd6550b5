"""Scores of a model, and the entries of a round's record that follow from client and shard results."""

import math
from dataclasses import replace
from itertools import chain

import numpy as np

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.measures import Samples, Scoring
from hedgerow.algorithms.core.messages import SPENT, Aggregate, Cohort, Exchange, Exchanges, Predictions
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.slots.middleware import ComposedAlgorithm, Middleware
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.storage.history import RoundRecord

QUANTILES = 1000
"""Number of accuracy quantiles that are recorded if there are more clients than that."""

BINS = 20
"""Number of bins of a histogram."""

AVERAGE = "client_average"
"""Key in the server state, where evaluated: the average of all clients' latest own models."""


def scored_state(state: Tree) -> Tree:
    """Server state whose model the evaluations score, and a run reports."""
    return {**state, "w": state[AVERAGE]} if AVERAGE in state else state


def evaluate(algorithm: ComposedAlgorithm, state: Tree, cohort: Cohort, draws_confusion: bool = False) -> Exchanges:
    """Score a server state on the test set and on the cohort: yields exchanges as an algorithm does.

    Returns the scores by name, the clients' accuracies on their own samples, in ascending order (None if no client is
    scored), and the counts of samples by class and predicted class (None unless `draws_confusion`).
    """
    test, local = yield from algorithm.evaluate(state, cohort)
    inner, scoring = algorithm.inner, algorithm.task.scoring
    common = local if inner.is_personal else test
    record, accuracies = model_scores(common, scoring), None
    if len(local.contributed):
        accuracies, summary = client_scores(local, scoring, inner.is_personal)
        record |= summary
    confusion = confusion_matrix(common) if draws_confusion else None
    return record | inner.evaluation_metrics(state, common) | inner.server_metrics(state), accuracies, confusion


def validate(evaluation: Exchanges, clients: np.ndarray, scoring: Scoring) -> Exchanges:
    """Run the evaluation of an algorithm on validation samples.

    clients: those that hold samples back. If there are none, the server has the samples, in as many shards as the
    cohort has test shards. Returns the scores by name; none if the algorithm scores neither test nor held-out samples.
    """
    samples = ValidationSamples(clients)
    at_server, at_clients = yield from samples.around(evaluation)
    result = at_clients if len(clients) else at_server
    return model_scores(result, scoring, "validation") if samples.are_scored else {}


class ValidationSamples(Middleware):
    """Puts validation samples in place of the test and held-out samples of an evaluation. clients: see `validate`.

    An exchange may have inputs per client only if it addresses these clients already.
    """

    def __init__(self, clients: np.ndarray):
        self.clients, self.are_scored = clients, False

    def before(self, exchange: Exchange) -> Exchange:
        holds_out = any(spec.split == "held_out" for spec in exchange.batches.values())
        is_at_server = exchange.site == "test"
        if not (is_at_server or holds_out):
            return exchange
        if is_at_server == bool(len(self.clients)):
            return Exchange(exchange.step, exchange.broadcast, exchange.clients[:0], site=exchange.site)
        if is_at_server:
            self.are_scored |= bool(len(exchange.clients))
            return replace(exchange, site="validation")
        self.are_scored = True
        batches = {
            name: replace(spec, split="selection") if spec.split == "held_out" else spec
            for name, spec in exchange.batches.items()
        }
        return replace(exchange, clients=self.clients, batches=batches)


class PredictionKeeper(Middleware):
    """Keeps the predictions of an evaluation, one entry per exchange that scores a model; None where there are none."""

    def __init__(self, algorithm: ComposedAlgorithm):
        self.algorithm = algorithm
        self.predictions: list[Predictions | None] = []

    def before(self, exchange: Exchange) -> Exchange:
        name = exchange.step.__name__
        if not len(exchange.clients) or not name.startswith("evaluate_client"):
            return exchange
        return replace(exchange, step=self.algorithm.client_step(name.replace("evaluate_client", "predict_client")))

    def after(self, exchange: Exchange, result: Aggregate) -> Aggregate:
        if exchange.step.__name__.startswith("predict_client"):
            self.predictions.append(result.predictions)
        return result


def output_keeper(algorithm: ComposedAlgorithm, draws_confusion: bool = False) -> PredictionKeeper | None:
    """Middleware of an evaluation that needs all outputs of a split, for a metric or for confusions; None otherwise."""
    return PredictionKeeper(algorithm) if draws_confusion or algorithm.task.scoring.sees_all else None


def histograms(algorithm: Algorithm, state: Tree) -> dict[str, dict[str, list[int]]]:
    """Histograms that the algorithm shows of its state: counts in `BINS` bins of equal width between 0 and 1."""
    return {
        title: {who: np.histogram(values.numpy(), BINS, (0, 1))[0].tolist() for who, values in parts.items()}
        for title, parts in algorithm.histograms(state).items()
    }


def model_scores(result: Aggregate, scoring: Scoring, samples_of: str = "test") -> RoundRecord:
    """Metrics and loss over all samples, and the same for other models that are scored with it.

    samples_of: "test" or "validation", for the names.
    """
    if not len(result.contributed):
        return {}
    return scoring.values(result.metrics, samples_of, _samples(result, scoring)) | other_scores(
        result.metrics, samples_of
    )


def _samples(result: Aggregate, scoring: Scoring) -> Samples | None:
    """Outputs and targets of an evaluation, if a metric needs them. Raises UserError if there are those of no model."""
    if not scoring.sees_all:
        return None
    if not result.metrics["samples"].sum():
        return np.zeros((0, 1), np.float32), np.zeros(0, np.int64)
    names = " and ".join(name for name, measure in scoring.measures.items() if measure.sees_all)
    known = _predictions(result, f"task.metrics: {names}")
    assert known.outputs is not None
    return known.outputs, known.labels


def _predictions(result: Aggregate, place: str) -> Predictions:
    known = result.predictions
    if known is None or len(known.labels) != result.metrics["samples"].sum():
        raise UserError(f"{place} needs the outputs of one model, and the algorithm scores several or none; remove it")
    return known


def confusion_matrix(result: Aggregate) -> list[list[int]]:
    """Number of samples by their class (rows) and the predicted class (columns)."""
    known = _predictions(result, "evaluation.confusion_matrix")
    classes = known.log_probabilities.shape[1]
    pairs = known.labels * classes + known.log_probabilities.argmax(1)
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes).tolist()


def other_scores(metrics: dict[str, np.ndarray], samples_of: str = "test") -> RoundRecord:
    """Accuracy and loss of the models that are scored as NAME_correct and NAME_loss, over all `samples`."""
    record: RoundRecord = {}
    for other in (name.removesuffix("_correct") for name in metrics if name.endswith("_correct")):
        # Any step may report a number with such a name.
        if not {"samples", f"{other}_loss"} <= metrics.keys():
            continue
        samples = metrics["samples"].sum()
        record[f"{other}_{samples_of}_accuracy"] = float(metrics[f"{other}_correct"].sum() / samples)
        count = metrics[f"{other}_loss_count"].sum() if f"{other}_loss_count" in metrics else samples
        record[f"{other}_{samples_of}_loss"] = float(metrics[f"{other}_loss"].sum() / count)
    return record


def client_scores(result: Aggregate, scoring: Scoring, personal: bool) -> tuple[list[float], RoundRecord]:
    """Accuracies of clients on their own samples in ascending order (quantiles if there are many; none without
    accuracies), and the mean of each metric over the clients. The tenth with the worst values of the main metric has
    its own mean. Clients without samples to be scored on are left out, and counted in `unscored_clients`; those for
    which a metric is undefined, in `unscored_clients_METRIC`.

    personal: include the highest and the lowest value of the main metric.
    """
    record, accuracies, samples = RoundRecord(), list[float](), _samples(result, scoring)
    if unscored := int((result.metrics["samples"] == 0).sum()):
        record["unscored_clients"] = unscored
    for number, (name, measure) in enumerate(scoring.measures.items()):
        values = scoring.per_client(result.metrics, name, samples)
        values = values if name == "loss" else np.sort(values)
        if undefined := len(result.contributed) - unscored - len(values):
            record[f"unscored_clients_{name}"] = undefined
        record[f"client_{name}"] = float(values.mean()) if len(values) else math.nan
        if number or not len(values) or name == "loss":
            continue
        # Clients that diverged are the worst; sorted, NaN comes last.
        worst = np.roll(values, np.isnan(values).sum()) if measure.mode == "max" else values[::-1]
        record[f"client_{name}_worst10"] = float(worst[: -(-len(values) // 10)].mean())
        if personal:
            record |= {f"client_{name}_highest": float(values[-1]), f"client_{name}_lowest": float(values[0])}
        if name == "accuracy":
            many = len(values) > QUANTILES
            accuracies = (np.quantile(values, np.linspace(0, 1, QUANTILES)) if many else values).tolist()
    return accuracies, record


def training_metrics(results: list[list[Aggregate]]) -> RoundRecord:
    """Mean of each metric over the clients that contributed, and the number of clients that were dropped.

    Parallel exchanges count as one. If several consecutive exchanges report a metric, the last value is used.
    Compute-cost metrics are averaged over all clients, including dropped ones, and summed over exchanges. If a round
    scores a model, such as a newly trained teacher, the record contains its scores.
    """
    record: RoundRecord = {"dropped": int(sum((~result.contributed).sum() for result in chain.from_iterable(results)))}
    for parallel in results:
        scores = [other_scores(result.metrics) for result in parallel]
        for score in scores:
            record |= score
        trained = [result for result, score in zip(parallel, scores, strict=True) if not score]
        names = dict.fromkeys(name for result in trained for name in result.metrics)
        # Others are for middleware.
        for name in (name for name in names if not name.startswith("@")):
            having = [result for result in trained if name in result.metrics]
            values = np.concatenate([result.metrics[name] for result in having])
            if name.startswith(SPENT):
                record[name] = record.get(name, 0.0) + float(values.mean())
                continue
            values = values[np.concatenate([result.contributed for result in having]) & np.isfinite(values)]
            record[f"train_{name}"] = float(values.mean()) if len(values) else float("nan")
    return record
