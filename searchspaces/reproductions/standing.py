"""How methods stand where no target is set: at equal rounds, at equal traffic, and in what they report and compute."""

from collections.abc import Iterable

from hedgerow.platform.tracking.formatting import percent
from hedgerow.platform.tracking.records import RoundRecord
from hedgerow.platform.tracking.summary import reported, summarise
from hedgerow.searchspaces.reproductions.table_file import Cells


def standing(runs: dict[str, list[RoundRecord]]) -> dict[str, Cells]:
    """Row by row: what it is -> method -> its cell. runs: a method's best records, by its heading.

    Methods that transmit nothing stand only at equal rounds. Traffic is what the least of them sends; where some count
    what they compute, as bilevel methods do, the least of these. One method alone has what it reports and counts.
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
    taught = {heading: end for heading, end in ends.items() if "teacher_test_accuracy" in end}
    if taught:
        rows["teacher"] = {heading: percent(end["teacher_test_accuracy"]) for heading, end in taught.items()}
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
    """The same of accuracies at some rounds, of those that ran so long."""
    rows = {}
    for number in rounds:
        there = {heading: records for heading, records in runs.items() if records[-1]["round"] >= number}
        rows[f"after {number} rounds"] = {h: percent(_last(records, "round", number)) for h, records in there.items()}
    return {what: cells for what, cells in rows.items() if cells}


def devices(runs: dict[str, list[RoundRecord]]) -> dict[str, Cells]:
    """The same of what personal models achieve in the end: on average, the highest, the lowest device."""
    ends = {heading: summarise(records, []) for heading, records in runs.items()}
    names = {"average": "client_accuracy", **{w: f"client_accuracy_{w}" for w in ("highest", "lowest")}}
    return {
        f"{what} device, at the end": {heading: percent(end[name]) for heading, end in ends.items()}
        for what, name in names.items()
        if ends and all("client_accuracy_lowest" in end for end in ends.values())
    }


def _last(records: list[RoundRecord], axis: str, most: float) -> float | None:
    """The last accuracy that came at no more rounds, or transmissions."""
    seen = [
        record["test_accuracy"] for record in records if "test_accuracy" in record and record[axis] <= most * 1.0001
    ]
    return seen[-1] if seen else None
