"""Sections of the page about reproductions, from verdicts.yaml and the stored results that it names."""

import json
import re
from collections import Counter
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from settings_pages import indented

from hedgerow.platform.runs.statistics import paired
from hedgerow.searchspaces.extra.table_file import FAMILIES, NOT_RUN, PublishedTable, all_tables, verdict_on, verdicts

VERDICTS = (
    "reproduced",
    "direction reproduced at reduced scale",
    "not reproduced",
    NOT_RUN,
    "no published claim",
)
RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
Result = dict[str, Any]


def reproductions(families: str) -> str:
    """Sections of the tables of some families; without a family, the number of tables by verdict."""
    if not families:
        return overview()
    shown: dict[str, str] = {}
    tables = [table for table in all_tables() if table.name.partition("/")[0] in families.split()]
    return "\n".join(section(table, shown) for table in tables)


def overview() -> str:
    """Number of tables by family and verdict, then all tables by verdict, with links to their sections."""
    tables = all_tables()
    counts = Counter(verdict_on(table.name) for table in tables)
    by_family = Counter((table.name.partition("/")[0], verdict_on(table.name)) for table in tables)
    head = f"| family | {' | '.join(VERDICTS)} |\n|---{'|---' * len(VERDICTS)}|\n"
    numbers = [
        f"| {family} | {' | '.join(str(by_family[family, verdict]) for verdict in VERDICTS)} |\n" for family in FAMILIES
    ]
    lines = ["| verdict | number | tables |", "|---|---|---|"]
    for verdict in VERDICTS:
        named = [f"[{t.name}](#{anchor(t.name)})" for t in tables if verdict_on(t.name) == verdict]
        if named:
            lines.append(f"| {verdict} | {counts[verdict]} | {', '.join(named)} |")
    return head + "".join(numbers) + "\n" + "\n".join(lines) + "\n"


def in_one_line() -> str:
    """Number of published tables by verdict, for the README."""
    counts = Counter(verdict_on(table.name) for table in all_tables())
    full, reduced, against, absent, without = (counts[verdict] for verdict in VERDICTS)
    return (
        f"Of {sum(counts.values()) - without} published tables with a claim, {full} are reproduced at full scale, "
        f"{reduced} in direction at reduced scale, {against} are undecided or contradicted, and {absent} need more "
        "compute or data than were at hand: [all verdicts](docs/reproductions.md).\n"
    )


def anchor(name: str) -> str:
    """Identifier of a table's section."""
    return name.lower().replace("/", "-").replace(".", "-")


def section(table: PublishedTable, shown: dict[str, str]) -> str:
    """Claim, verdict, measurements, rows and command of a table.

    shown: results that the page has above -> table whose section has them. The function adds this table's.
    """
    entry = verdicts()[table.name]
    entries = [entry, *entry.get("lines", {}).values()]
    results = list(dict.fromkeys(result for one in entries for result in one.get("results", [])))
    seen = sorted({shown[name] for name in results if name in shown})
    links = ", ".join(f"[{name}](#{anchor(name)})" for name in seen)
    command = entry.get("command", f"hedgerow table {table.name}")
    parts = [
        f"### {table.name}: {table.title} {{ #{anchor(table.name)} }}\n",
        f"*Claim.* {entry['claim']}\n",
        f"**{entry['verdict'].capitalize()}.** {entry.get('reason', '')}\n",
        *(measured(name) for name in results if name not in shown),
        f"Further measurements are under {links}.\n" if links else "",
        rows(table),
        f"Command: `{command}`\n",
    ]
    shown.update({name: table.name for name in results if name not in shown})
    return "\n".join(part for part in parts if part)


def rows(table: PublishedTable) -> str:
    """Verdicts on the rows of a table, and the rows that were not run."""
    lines = verdicts()[table.name].get("lines", {})
    ran = {name: line for name, line in lines.items() if line["verdict"] != NOT_RUN}
    seen = [f"- `{name}`: {line['verdict']}. {line.get('reason', '')}\n" for name, line in ran.items()]
    absent = [row.name for row in table.rows if row.name not in ran]
    if not seen or not absent:
        return "".join(seen)
    return "".join(seen) + f"- Not run: {', '.join(f'`{name}`' for name in absent)}.\n"


# ---- results ---------------------------------------------------------------------------------------------------------


def measured(name: str) -> str:
    """A stored result: scores and paired differences of several seeds, or a link to a table of one seed."""
    file = RESULTS / name
    if name.startswith("reproductions/"):
        return comparison(json.loads(file.read_text()))
    folder = file.parent
    table = folder / "table.md"
    if not table.exists():
        return f"Stored result: `benchmarks/results/{name}`\n"
    lines = [re.sub(r"\|(?=  ?\|)", "| -", line) for line in table.read_text().splitlines() if line.startswith("|")]
    by_grid = any(line.get("grid") for line in json.loads(file.read_text()).get("lines", []))
    sentence = "\nEach method has the best configuration of its grid, chosen by the scores of this table.\n"
    body = indented("\n".join(lines) + "\n" + (sentence if by_grid else ""))
    link = f"[all of it](benchmarks/results/{folder.relative_to(RESULTS).as_posix()}/table.md)"
    return f'??? example "One seed: {folder.name}"\n\n{body}\n    {link}\n'


def comparison(result: Result) -> str:
    """Means over the seeds of each method, paired differences with intervals, and how they were measured."""
    scale = 100 if "%" in result["unit"] else 1
    scores = scores_of(result)
    seeds = len(result["settings"]["seeds"])
    lines = [f"| {' | '.join(scores)} |", "|---" * len(scores) + "|"]
    cells = [f"{scale * mean(values):.1f} ± {scale * stdev(values):.1f}" for values in scores.values()]
    lines += [f"| {' | '.join(cells)} |", ""]
    differences = ["| difference | mean | 95 % interval | p | as claimed |", "|---|---|---|---|---|"]
    claims, further = result["claims"], result.get("compared", [])
    for better, worse in [*claims, *further]:
        found = difference(result, better, worse)
        interval = "-" if found.low is None else f"{scale * found.low:+.1f} to {scale * found.high:+.1f}"
        holds = {True: "yes", False: "no", None: "undecided"}[outcome(result, better, worse)]
        holds = holds if [better, worse] in claims else "no claim"
        label = f"{better} - {worse}" if worse else better
        differences.append(f"| {label} | {scale * found.mean:+.1f} | {interval} | {found.p:.2g} | {holds} |")
    changed = {"": result["settings"]["sets"], **result["settings"]["methods"]}
    changes = "; ".join(
        (f"{heading}: " if heading else "") + ", ".join(f"`{one}`" for one in keys)
        for heading, keys in changed.items()
        if keys
    )
    about = (
        f"`{result['settings']['row']}`, {result['unit']}, {seeds} seeds, mean ± standard deviation. {result['note']}. "
        f"`{result['command']}`, {minutes(result['seconds'])}, commit {(result['commit'] or '-')[:12]}. "
        f"Changes to the row: {changes or 'none'}."
    )
    return "\n".join([about, "", *lines, *differences, ""])


def scores_of(result: Result) -> dict[str, list[float]]:
    """Scores by method, in the order of the seeds."""
    seeds = [str(seed) for seed in result["settings"]["seeds"]]
    return {method: [scores[seed] for seed in seeds] for method, scores in result["scores"].items()}


def difference(result: Result, better: str, worse: str) -> Any:
    """Paired difference of two methods over the seeds; an empty `worse` stands for 0."""
    scores = scores_of(result)
    others = scores[worse] if worse else [0.0] * len(scores[better])
    return paired([a - b for a, b in zip(scores[better], others, strict=True)])


def outcome(result: Result, better: str, worse: str) -> bool | None:
    """Whether a claim holds, by an interval that excludes zero; None if zero is inside or there is no interval."""
    found = difference(result, better, worse)
    if found.low is None or found.low <= 0 <= found.high:
        return None
    return bool((found.mean > 0) == result["more_is_better"])


def minutes(seconds: float) -> str:
    """Duration for people."""
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
