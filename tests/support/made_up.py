"""Made-up records of searches, as input for reports."""

import math

from hedgerow.searchspaces.extra.table_file import PublishedTable, TableRow
from hedgerow.searchspaces.extra.table_search import RowSearch, row_searches
from hedgerow.searchspaces.results.trials import Trial

NAN = float("nan")


def records(accuracies: list[float | None], cost: float = 1.0, clients: bool = False) -> list[dict]:
    """One record per round, without evaluation if there is no accuracy. cost: transmissions per round."""
    out = []
    for number, accuracy in enumerate(accuracies, start=1):
        record = {
            "round": number, "seconds": 0.5 * number, "train_loss": 2.0 / number, "transmissions": cost * number,
            "scalars_down": 10, "scalars_up": 10, "bytes_down": 40, "bytes_up": 40, "dropped": 0,
        }  # fmt: skip
        if accuracy is not None:
            record |= {"test_accuracy": accuracy, "test_loss": 1 - accuracy}
            if clients:
                record |= {"client_accuracy": accuracy - 0.1, "client_accuracy_worst10": accuracy - 0.2}
        out.append(record)
    return out


def trials() -> list[Trial]:
    """Five trials: accurate and expensive; fast and cheap, then worse; diverged; dead at once; never good."""
    return [
        Trial("000", {"algorithm.lr": 0.1, "algorithm.mu": 1.0}, records([0.2, None, 0.5, 0.9], cost=2, clients=True)),
        Trial("001", {"algorithm.lr": 1.0}, records([0.6, 0.8, 0.7, 0.7])),
        Trial("002", {"algorithm.lr": 10.0}, records([0.3, NAN])),
        Trial("003", {"algorithm.lr": 100.0}, [], "died"),
        Trial("004", {"algorithm.lr": 0.01}, records([0.1, 0.1, 0.2, 0.2])),
    ]


def hedge_records(experts: int, rounds: int, gamma: float = 0.1, dead: int | None = None) -> list[dict]:
    """Hedge on experts of constant loss 0, 1/n, 2/n, ...; `dead` has no loss from the second round on and rests."""
    log_weights, paid, best_loss, out = [0.0] * experts, 0.0, 0.0, []
    for number in range(1, rounds + 1):
        losses = [None if i == dead and number > 1 else i / experts for i in range(experts)]
        total = sum(map(math.exp, log_weights))
        weights = [math.exp(s) / total for s in log_weights]
        awake = sum(w for w, loss in zip(weights, losses, strict=True) if loss is not None)
        loss = sum(w * x for w, x in zip(weights, losses, strict=True) if x is not None) / awake
        paid += loss
        record = {
            "round": number,
            "weights": weights,
            "losses": losses,
            "hedge_loss": loss,
            "expected": {"test_accuracy": 1 - loss},
            "leader": weights.index(max(weights)),
            "best": 0,
            "cumulative_loss": paid,
            "best_loss": best_loss,
            "regret": paid - best_loss,
            "bound": math.log(experts) / -math.log(gamma) - math.log(gamma) * number / 8,
            "entropy": 1.0,
        }
        out.append(record)
        log_weights = [s + (x or 0) * math.log(gamma) for s, x in zip(log_weights, losses, strict=True)]
        total = sum(map(math.exp, log_weights))
        record["next_weights"] = [math.exp(s) / total for s in log_weights]
    return out


def hand_made() -> list[dict]:
    """Two experts, three rounds: the second leads at first, the first is the best."""
    rows = [([0.5, 0.5], [0.2, 0.4], 0.3), ([0.3, 0.7], [0.1, 0.5], 0.38), ([0.95, 0.05], [0.0, 0.6], 0.03)]
    paid, best, out = 0.0, 0.0, []
    for number, (weights, losses, loss) in enumerate(rows, start=1):
        paid, best = paid + loss, best + losses[0]
        record = {
            "round": number,
            "weights": weights,
            "next_weights": weights,
            "losses": losses,
            "hedge_loss": loss,
            "best": 0,
            "expected": {"test_accuracy": 1 - loss} if number != 2 else {},
            "leader": weights.index(max(weights)),
            "cumulative_loss": paid,
            "best_loss": best,
            "regret": paid - best,
            "bound": 2.5,
            "entropy": 0.5,
        }
        out.append(record)
    return out


def deployed_records() -> list[dict]:
    """Hand-made rounds of two experts with the scores of two deployed policies."""
    return [
        record | {"deployed": {"leader": {"expert": expert, "accuracy": accuracy, "loss": 1.0}, "mixture": mixture}}
        for record, expert, accuracy, mixture in zip(
            hand_made(), (0, 1, 0), (0.8, 0.9, 0.7),
            ({"accuracy": 0.9, "loss": 0.5}, None, {"accuracy": 0.7, "loss": 0.5}), strict=True,
        )
    ]  # fmt: skip


def sweep_of(table: PublishedTable, row: TableRow, *options, **more) -> RowSearch:
    """The single search that runs a row of a table."""
    (search,) = row_searches(table, row, *options, **more)
    return search
