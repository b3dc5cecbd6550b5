"""Compares methods without a target: at equal rounds, at equal traffic, and by reported and computed quantities."""

from collections.abc import Iterable

from hedgerow.platform.common.percent import percent
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.tracking.summary import reported, summarise
from hedgerow.searchspaces.reproductions.table_file import Cells


def standing(runs: dict[str, list[RoundRecord]]) -> dict[str, Cells]:
    """Rows of a comparison: label -> method -> cell. runs: records of the best run of each method, by heading.

    Methods that transmit nothing are compared only at equal rounds. Equal traffic is the smallest traffic of all
    methods or, if some methods count their computations, as bilevel methods do, of these methods. A single method has
    only the quantities that it reports and counts.
    """
    if not runs:
        return {}
    ends = {heading: summarise(records, []) for heading, records in runs.items()}
    rounds = min(end["rounds"] for end in ends.values())
    rows = after(runs, [rounds]) if len(runs) > 1 else {}
    sending = {heading: records for heading, records in runs.items() if ends[heading]["transmissions"]}
    if len(sending) > 1:
        counting = [heading for heading in sending if ends[heading]["spent"]] or list(sending)
        traffic = min(ends[heading]["transmissions"] for heading in counting)
        rows[f"after {traffic:.4g} transmissions"] = {
            heading: percent(_last(records, "transmissions", traffic)) for heading, records in sending.items()
        }
    rows |= devices(runs)
    teachers = {heading: end for heading, end in ends.items() if "teacher_test_accuracy" in end}
    if teachers:
        rows["teacher"] = {heading: percent(end["teacher_test_accuracy"]) for heading, end in teachers.items()}
    for name in dict.fromkeys(name for records in runs.values() for name in reported(records)):
        rows[name.replace("_", " ")] = {
            h: f"{end['report'][name]:.3g}" for h, end in ends.items() if name in end["report"]
        }
    if any(end["spent"] for end in ends.values()):
        rows["exchanges"] = {heading: f"{end['exchanges']:,}" for heading, end in ends.items()}
    for name in dict.fromkeys(name for end in ends.values() for name in end["spent"]):
        rows[name.replace("_", " ")] = {
            h: f"{end['spent'].get(name, 0):,.0f}" for h, end in ends.items() if end["spent"]
        }
    return rows


def after(runs: dict[str, list[RoundRecord]], rounds: Iterable[int]) -> dict[str, Cells]:
    """Rows of accuracies after given numbers of rounds, for the methods that ran this long."""
    rows = {}
    for number in rounds:
        candidates = {heading: records for heading, records in runs.items() if records[-1]["round"] >= number}
        rows[f"after {number} rounds"] = {
            h: percent(_last(records, "round", number)) for h, records in candidates.items()
        }
    return {what: cells for what, cells in rows.items() if cells}


def devices(runs: dict[str, list[RoundRecord]]) -> dict[str, Cells]:
    """Rows of the final accuracies of personal models: average, highest and lowest device."""
    ends = {heading: summarise(records, []) for heading, records in runs.items()}
    names = {"average": "client_accuracy", **{w: f"client_accuracy_{w}" for w in ("highest", "lowest")}}
    return {
        f"{what} device, at the end": {heading: percent(end[name]) for heading, end in ends.items()}
        for what, name in names.items()
        if ends and all("client_accuracy_lowest" in end for end in ends.values())
    }


def _last(records: list[RoundRecord], axis: str, most: float) -> float | None:
    """Last accuracy at `most` rounds or transmissions, or fewer."""
    accuracies = [
        record["test_accuracy"] for record in records if "test_accuracy" in record and record[axis] <= most * 1.0001
    ]
    return accuracies[-1] if accuracies else None
