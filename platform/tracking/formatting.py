"""Tables of the summaries of runs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hedgerow.platform.common.numbers import ENDS, is_no_share, name_of, number, unit_of
from hedgerow.platform.common.table import Column, Table
from hedgerow.platform.config.measures_section import mode_of


def summary_row(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of a summary that tables show, in their order; a cost of a target is a text such as "148" or "200+".

    An algorithm on a stream transmits nothing, and its last round is one of many tasks.
    """
    if "ctm" in summary:
        names = ["ctm", "ltm", "memory_vectors", "memory_tasks", "rounds", "seconds", "regret"]
        return {name: summary[name] for name in names if name in summary}
    main = summary.get("metric", "accuracy")
    tests = [key for key in summary if key.startswith("test_") and key not in (f"test_{main}", "test_loss")]
    names = [f"test_{main}", f"best_test_{main}", *tests, "test_loss", f"validation_{main}"]
    names += [f"client_{main}{end}" for end in ("", *ENDS)] + ["teacher_test_accuracy", "transmissions", "bytes"]
    names += ["rounds", "seconds", "simulated_seconds"]
    row = {name: summary[name] for name in names if name in summary} | summary["report"]
    spent = summary["transmissions"]
    return row | {
        f"transmissions_to_{target}": number(cost["transmissions"]) if cost else f"{number(spent)}+"
        for target, cost in summary["to_target"].items()
    }


def summary_columns(summary: Mapping[str, Any]) -> list[Column]:
    """Columns of `summary_row` that need more than their names."""
    main = summary.get("metric", "accuracy")
    names = [f"{kind}_{main}" for kind in ("test", "best_test", "client")] + ["test_loss"]
    columns = [Column(name, better=mode_of(name) or "") for name in names]
    return [*columns, *([Column("rounds", "tasks")] if "ctm" in summary else []), Column("regret", unit="loss")]


def summary_table(runs: Sequence[tuple[str, Mapping[str, Any]]], title: str = "") -> Table:
    """Table with a row per run. runs: (name, result of `summary.summarise`); an empty name is no column."""
    rows = [({"run": name} if name else {}) | summary_row(summary) for name, summary in runs]
    columns = [one for _, summary in runs for one in summary_columns(summary)]
    targets = [float(label) for _, summary in runs for label in summary["to_target"] if not is_no_share(label)]
    return Table(rows, title, columns, targets)


def cost_table(runs: Sequence[tuple[str, Mapping[str, Any]]], title: str) -> Table:
    """Table with exchanges and compute costs per client of each run, as in the complexity tables of papers."""
    names = list(dict.fromkeys(name for _, summary in runs for name in summary["spent"]))
    rows = [
        {"run": run, "exchanges": summary["exchanges"]} | {name: summary["spent"].get(name, 0) for name in names}
        for run, summary in runs
        if summary["spent"]
    ]
    return Table(rows, title, [Column(name, unit="count") for name in names])


def scores_text(scores: Mapping[str, Any]) -> str:
    """Values of metrics in a sentence: "test accuracy 90.0 %, test loss 0.312"."""
    return ", ".join(f"{name_of(name)} {number(value, unit_of(name))}" for name, value in scores.items())


def dropped_warning(dropped: int) -> str:
    """Warning about clients that diverged, with the fix."""
    answers = "1 client answer was" if dropped == 1 else f"{dropped} client answers were"
    return f"warning: {answers} not finite and left out; lower lr or set clip_norm"


def flat_settings(overrides: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Sections flattened: "algorithm.lr" for {"algorithm": {"lr": ...}}."""
    flat: dict[str, Any] = {}
    for key, value in overrides.items():
        flat |= flat_settings(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return flat


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Shortest unambiguous ending of each dotted key: "lr" for "algorithm.lr", unless there is also "model.lr"."""
    keys = list(dict.fromkeys(keys))
    names = {}
    for key in keys:
        parts = key.split(".")
        endings = (".".join(parts[-length:]) for length in range(1, len(parts)))
        names[key] = next((e for e in endings if sum(f".{other}".endswith(f".{e}") for other in keys) == 1), key)
    return names


def short_label(overrides: dict[str, Any], names: dict[str, str] | None = None) -> str:
    """Label such as "lr=0.1 mu=1". names: name of each key; by default, its shortest unambiguous ending."""
    names = names or short_names(overrides)
    return " ".join(f"{names[key]}={number(value, 'setting')}" for key, value in overrides.items()) or "defaults"
