"""The MLflow side of a search: a parent run for the search, a child run for each expert."""

from hedgerow.platform.experiment_file import load_experiment
from hedgerow.platform.mlflow_store import MlflowPlace, MlflowStore, run_tags
from hedgerow.platform.runs import RunFolder
from hedgerow.platform.tracking import Record
from hedgerow.searchspaces.expert import expert_folder
from hedgerow.searchspaces.search_file import SearchPlan

PARENT = "mlflow.parentRunId"


class ParentStore(MlflowStore):
    """The run of the search itself: Hedge's weights and losses by round."""

    clock = "hedge_loss"


class SearchStore:
    """Sorts records by their "expert" into the child runs; those of expert None are Hedge's own."""

    def __init__(self, folder: RunFolder, plan: SearchPlan):
        self.folder, self.place = folder, MlflowPlace.of(plan.experiment)
        record = folder.record()
        self.tags = run_tags(record)
        values = plan.experiment.model_dump(mode="json") | {"search": plan.search.model_dump(mode="json")}
        self.parent = ParentStore(self.place, folder.name, values, self.tags, record.get("mlflow_run_id"))
        folder.update(mlflow_run_id=self.parent.run_id)
        self.children: dict[int, MlflowStore] = {}

    def log(self, records: list[Record]) -> None:
        """Record rounds of the experts and of Hedge."""
        sorted_: dict[int | None, list[Record]] = {}
        for record in records:
            rest = {key: value for key, value in record.items() if key != "expert"}
            sorted_.setdefault(record["expert"], []).append(rest)
        for expert, mine in sorted_.items():
            if expert is None:
                self.parent.log([_flat(record) for record in mine])
            else:
                self.child(expert).log(mine)

    def child(self, expert: int) -> MlflowStore:
        """The run of an expert, made on the first call and remembered in its folder."""
        if expert not in self.children:
            folder = expert_folder(self.folder.path, expert)
            values = load_experiment(folder.experiment).model_dump(mode="json")
            tags = self.tags | {PARENT: self.parent.run_id, "expert": folder.name}
            store = MlflowStore(
                self.place, f"{self.folder.name}/{folder.name}", values, tags, folder.record().get("mlflow_run_id")
            )
            folder.update(mlflow_run_id=store.run_id)
            self.children[expert] = store
        return self.children[expert]

    def end(self, status: str) -> None:
        """End every run that is open: the experts' by what became of them, where the search itself came to its end."""
        for expert, store in self.children.items():
            became = expert_folder(self.folder.path, expert).record()["status"]
            ended = {"failed": "FAILED", "finished": "FINISHED", "stopped": "FINISHED"}
            store.end(ended.get(became, status))
        self.parent.end(status)


def _flat(record: Record) -> Record:
    """One of Hedge's records as MLflow's metrics."""
    flat = {key: value for key, value in record.items() if isinstance(value, (int, float))}
    flat |= {f"expected_{name}": value for name, value in record["expected"].items()}
    return flat | {f"weight/{index:03d}": weight for index, weight in enumerate(record["weights"])}
