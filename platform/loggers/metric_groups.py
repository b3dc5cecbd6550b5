"""Names of metrics in MLflow: `group/name`, since MLflow's page opens one section for each group."""

TRAFFIC = {"scalars_down", "scalars_up", "bytes_down", "bytes_up", "exchanges", "transmissions"}
COHORT = {"participants", "dropped"}
COUNTS = TRAFFIC | COHORT | {
    *("quarantined", "unscored_clients", "unavailable", "dropped_out", "late", "awake", "price"),
    *("memory_vectors", "memory_tasks", "memory_bytes"),
}  # fmt: skip
"""Metrics that often have the same value in all rounds: MLflow has only those that change."""
COST = {"seconds", "gpu_peak_mb"}
SAMPLES = ("test", "validation", "train", "client")
"""Groups of the scores on samples, by the beginning of a metric's name."""


def grouped(name: str) -> str:
    """Name of a run's metric in MLflow: `test_accuracy` -> `test/accuracy`.

    The groups are test, validation, train, client, traffic, cohort, cost, and algorithm for all others.
    """
    if "/" in name:
        return name
    for group, names in (("traffic", TRAFFIC), ("cohort", COHORT), ("cost", COST)):
        if name in names:
            return f"{group}/{name}"
    if name.startswith("spent_"):
        return f"cost/{name.removeprefix('spent_')}"
    for group in SAMPLES:
        if name.startswith(f"{group}_"):
            return f"{group}/{name.removeprefix(f'{group}_')}"
    for group in ("test", "validation"):
        # Another model than the server's: simple_test_accuracy -> test/simple_accuracy.
        before, _, after = name.partition(f"_{group}_")
        if after:
            return f"{group}/{before}_{after}"
    return f"algorithm/{name}"


def hedge_grouped(name: str) -> str:
    """Name of a metric of a search's record in MLflow: `hedge_loss` -> `hedge/loss`; weights have their own group."""
    return name if "/" in name else f"hedge/{name.removeprefix('hedge_')}"
