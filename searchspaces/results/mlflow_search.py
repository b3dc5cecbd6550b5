"""The MLflow side of a search: a parent run for the search, a child run for each expert."""

from pathlib import Path

from mlflow.tracking import MlflowClient

from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.tracking.mlflow_store import MlflowPlace, MlflowStore, experiment_id
from hedgerow.platform.tracking.records import RoundRecord
from hedgerow.platform.tracking.run_description import NOTE, run_text, sentence, settings, tags
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.searchspaces.results.search_table import hedge_sentences
from hedgerow.searchspaces.results.trials import Trial, expert_folder, searched_keys, short_names, trial_label
from hedgerow.searchspaces.spaces.search_file import SearchSpec

PARENT = "mlflow.parentRunId"


class ParentStore(MlflowStore):
    """The run of the search itself: Hedge's weights and losses by round."""

    clock = "hedge_loss"


class SearchStore:
    """Sorts records by their "expert" into the child runs; those of expert None are Hedge's own."""

    def __init__(self, folder: RunFolder, plan: SearchSpec):
        self.folder, self.plan = folder, plan
        self.record = folder.record()
        values = plan.experiment.model_dump(mode="json") | {"search": plan.search.model_dump(mode="json")}
        said = tags(self.record, plan.experiment) | {"search": plan.search.kind, NOTE: search_text(folder, plan)}
        if self.table:
            client = MlflowClient(MlflowPlace.of(plan.experiment).resolved_uri())
            said |= {"table": self.table, PARENT: table_run(client, plan.experiment, self.table)}
        self.parent = ParentStore(plan.experiment, folder.name, values, said, folder)
        self.children: dict[int, MlflowStore] = {}

    @property
    def table(self) -> str | None:
        """The published table of which this search is a line, as in "feddyn/T2.3"."""
        return "/".join(self.record["table"]["line"].split("/")[:2]) if "table" in self.record else None

    def log(self, records: list[RoundRecord]) -> None:
        """Record rounds of the experts and of Hedge."""
        sorted_: dict[int | None, list[RoundRecord]] = {}
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
            experiment = load_experiment(folder.experiment)
            said = tags(self.record, experiment) | {
                PARENT: self.parent.run_id,
                "expert": folder.name,
                NOTE: run_text(folder),
            }
            values = experiment.model_dump(mode="json")
            self.children[expert] = MlflowStore(experiment, self._name(folder), values, said, folder)
        return self.children[expert]

    def _all(self) -> dict[int, MlflowStore]:
        """The runs of all experts that have one, also from before a server failed and this store was made anew."""
        for folder in sorted((self.folder.path / "experts").glob("*")):
            if RunFolder(folder).exists and "mlflow_run_id" in RunFolder(folder).record():
                self.child(int(folder.name))
        return self.children

    def _name(self, folder: RunFolder) -> str:
        """An expert's number and what sets it apart: of a table's line, its method."""
        headings = self.record.get("table", {}).get("headings")
        overrides = folder.record()["overrides"]
        known = [Trial("", one, []) for one in self.plan.configurations or [overrides]]
        label = trial_label(Trial(folder.name, overrides, []), short_names(searched_keys(known)))
        if headings:
            alone = headings.count(headings[int(folder.name)]) == 1
            label = headings[int(folder.name)] + ("" if alone else f" {label}")
        return f"{folder.name} {label}"[:200]

    def tell_result(self) -> None:
        """Record the search's files, and what came out of it and of its experts."""
        self.parent.log_files(self.folder.path)
        self.parent.describe(search_text(self.folder, self.plan))
        for expert, store in self._all().items():
            store.describe(run_text(expert_folder(self.folder.path, expert)))

    def log_model(self, saved: Path) -> None:
        """Record the best trial's model as the search's; see `MlflowStore.log_model`."""
        self.parent.log_model(saved)

    def end(self, status: str) -> None:
        """End every run that is open: the experts' by what became of them, where the search itself came to its end."""
        for expert, store in self._all().items():
            became = expert_folder(self.folder.path, expert).record()["status"]
            ended = {"failed": "FAILED", "finished": "FINISHED", "stopped": "FINISHED"}
            store.end(ended.get(became, status))
        self.parent.end(status)


def search_text(folder: RunFolder, plan: SearchSpec) -> str:
    """The description of a search; with its result, once it has one."""
    keys = ", ".join(f"`{key}`" for key in plan.search.space)
    text = sentence(folder.record(), plan.experiment)
    text += f"\nSearch `{plan.search.kind}` over {keys}, by `{plan.search.metric}`.\n"
    summary, results = folder.record().get("summary"), folder.path / "results.md"
    if summary and plan.search.weighs_rounds:
        text += f"\n{hedge_sentences(summary)}\n"
    if results.exists():
        _title, _, tables = results.read_text(encoding="utf-8").partition("\n\n")
        text += f"\n## Trials\n\n{tables}"
    return f"{text}{settings(plan.experiment)}\nFolder: `{folder.path.absolute()}`\n"


def table_run(client: MlflowClient, experiment: Experiment, table: str) -> str:
    """The run beneath which all lines of a published table lie, made where it is not there yet."""
    home = experiment_id(client, MlflowPlace.of(experiment))
    is_it = f"tags.hedgerow_table = '{table}'"
    if found := client.search_runs([home], is_it, max_results=1):
        return found[0].info.run_id
    text = f"Lines of the published table `{table}`; `hedgerow table {table} --report` prints it.\n"
    run = client.create_run(home, tags={"hedgerow_table": table, NOTE: text}, run_name=table)
    client.set_terminated(run.info.run_id)
    return run.info.run_id


def _flat(record: RoundRecord) -> RoundRecord:
    """One of Hedge's records as MLflow's metrics."""
    flat = {key: value for key, value in record.items() if isinstance(value, (int, float))}
    flat |= {f"expected_{name}": value for name, value in record["expected"].items()}
    return flat | {f"weight/{index:03d}": weight for index, weight in enumerate(record["weights"])}
