"""What a run's records say in the end."""

from typing import Any

Record = dict[str, Any]


def summarise(records: list[Record], targets: list[float]) -> dict[str, Any]:
    """Final and best figures, totals, and what it took to reach each target accuracy.

    "to_target" maps a target to {"rounds", "transmissions"} of the first evaluated round that reaches it, or to None.
    Transmissions are in units of one FedAvg round (thesis, 2.8).
    """
    evaluated = [record for record in records if "test_accuracy" in record]
    last, final = records[-1], evaluated[-1] if evaluated else {}
    summary = {
        "rounds": last["round"],
        "seconds": last["seconds"],
        "transmissions": last["transmissions"],
        "scalars": sum(r["scalars_down"] + r["scalars_up"] for r in records),
        "bytes": sum(r["bytes_down"] + r["bytes_up"] for r in records),
        "dropped": sum(r["dropped"] for r in records),
        "best_test_accuracy": max((r["test_accuracy"] for r in evaluated), default=None),
    }
    for key in ("test_accuracy", "test_loss", "client_accuracy", "client_accuracy_worst10"):
        summary[key] = final.get(key)
    summary["to_target"] = {f"{target:g}": _first(evaluated, target) for target in targets}
    return summary


def _first(evaluated: list[Record], target: float) -> dict[str, Any] | None:
    for record in evaluated:
        if record["test_accuracy"] >= target:
            return {"rounds": record["round"], "transmissions": record["transmissions"]}
    return None
