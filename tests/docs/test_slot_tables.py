"""The page about slots shows the stored results."""

import json
import sys
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_means_of_the_stored_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from slot_tables import RESULTS, scores, slots

    sys.modules.pop("slot_tables")
    lines = json.loads(RESULTS.read_text())["lines"]
    clean = [100 * line["best_accuracy"]["FedAvg"] for line in lines if "/none-" in line["line"]]
    assert len(clean) == 3
    assert f"| none | {mean(clean):.1f} ±" in slots()
    assert all(len(values) == 3 for by_method in scores().values() for values in by_method.values() if values)
