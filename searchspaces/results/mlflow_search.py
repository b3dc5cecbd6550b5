"""MLflow runs of a search: a parent run for the search, and a child run for each expert."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.loggers.metric_groups import hedge_grouped
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.tracking.formatting import short_names
from hedgerow.platform.tracking.mlflow_store import (
    MlflowClient,
    MlflowStore,
    client_for,
    experiment_id,
    final_scores,
    log_model,
)
from hedgerow.platform.tracking.run_description import NOTE, run_text, sentence, settings, tags
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.searchspaces.hedge.deployment import DeployedState
from hedgerow.searchspaces.results.deployed_model import DEPLOYED
from hedgerow.searchspaces.results.finished_search import FinishedSearch
from hedgerow.searchspaces.results.search_table import hedge_sentences
from hedgerow.searchspaces.results.trials import Trial, expert_folder, searched_keys, trial_label
from hedgerow.searchspaces.spaces.packing import COPIES, LINEAGE
from hedgerow.searchspaces.spaces.search_file import SearchSpec

PARENT = "mlflow.parentRunId"

WEIGHT = "hedge/weight"
"""Metric of an expert's run: its weight in each round of Hedge."""

SETTINGS = {
    "algorithm": "algorithm.name",
    "dataset": "task.data.name",
    "partition": "task.partition.kind",
    "clients": "task.partition.clients",
    "model": "task.model.name",
}
"""Setting that a tag shows, where the tag has another name."""

TAG = 5000
"""Longest value of a tag that every store of MLflow accepts."""


class ParentStore(MlflowStore):
    """Run of the search itself: Hedge's weights and losses by round."""

    clock = "hedge_loss"
    named = staticmethod(hedge_grouped)


class SearchStore:
    """Distributes records to the child runs by their "expert"; records with expert None belong to Hedge."""

    def __init__(self, folder: RunFolder, spec: SearchSpec):
        self.folder, self.spec = folder, spec
        self.record = folder.record()
        searched = {*spec.search.space, *(key for overrides in spec.configurations for key in overrides)}
        values = _without(spec.experiment.model_dump(mode="json"), searched)
        values["search"] = spec.search.model_dump(mode="json")
        run_tags = {
            name: tag
            for name, tag in tags(self.record, spec.experiment).items()
            if not any(f"{SETTINGS.get(name, name)}.".startswith(f"{key}.") for key in searched)
        }
        run_tags |= {"search": spec.search.kind, NOTE: search_text(folder, spec)}
        if self.table:
            client = client_for(spec.experiment)
            run_tags |= {"table": self.table, PARENT: table_run(client, spec.experiment, self.table)}
        self.parent = ParentStore(spec.experiment, folder.name, values, run_tags, folder)
        self.children: dict[int, MlflowStore] = {}
        self._copies: dict[int, int] = {}
        self._weighed: dict[int, int] = {}
        """Last round of Hedge whose weight the run of each expert has."""

    @property
    def table(self) -> str | None:
        """Name of the published table to which this search belongs, such as "feddyn/T2.3"; else None."""
        return "/".join(self.record["table"]["line"].split("/")[:2]) if "table" in self.record else None

    def log(self, records: list[RoundRecord]) -> None:
        """Record rounds of the experts and of Hedge."""
        by_expert: dict[tuple[int | None, int | None], list[RoundRecord]] = {}
        for record in records:
            rest = {key: value for key, value in record.items() if key not in ("expert", COPIES)}
            by_expert.setdefault((record["expert"], record.get(COPIES)), []).append(rest)
        for (expert, copies), group in by_expert.items():
            if expert is None:
                self.parent.log([_flat(record) for record in group])
                self._log_weights(group)
            elif copies in (None, expert_folder(self.folder.path, expert).record().get(COPIES, 0)):
                # Other records are those of a model that the expert has given up for a copy of another one.
                self.child(expert).log(group)

    def _log_weights(self, hedge: list[RoundRecord]) -> None:
        """Record the weight of each expert that has started in its run. hedge: rounds of Hedge."""
        for expert in range(len(hedge[-1]["weights"]) if hedge else 0):
            if expert_folder(self.folder.path, expert).exists:
                store = self.child(expert)
                if expert not in self._weighed:
                    history = store.client.get_metric_history(store.run_id, WEIGHT)
                    self._weighed[expert] = max((metric.step for metric in history), default=0)
                rounds = [record for record in hedge if record["round"] > self._weighed[expert]]
                store.log_points((WEIGHT, record["weights"][expert], record["round"]) for record in rounds)
                self._weighed[expert] = max(self._weighed[expert], hedge[-1]["round"])

    def child(self, expert: int) -> MlflowStore:
        """Run of an expert, created on the first call and recorded in its folder.

        An expert that takes over the model of another one gets a new run: the parameters of a run in MLflow cannot
        change, nor the metrics of rounds that it has.
        """
        folder = expert_folder(self.folder.path, expert)
        copies = folder.record().get(COPIES, 0)
        if self._copies.get(expert) != copies:
            self.children.pop(expert, None)
            self._copies[expert] = copies
            if copies:
                self._delete_run_before(folder, copies)
        if expert not in self.children:
            experiment = load_experiment(folder.experiment)
            run_tags = tags(self.record, experiment) | {
                "expert": folder.name,
                NOTE: run_text(folder),
                **({COPIES: str(copies), LINEAGE: json.dumps(folder.record()[LINEAGE])[:TAG]} if copies else {}),
            }
            values = experiment.model_dump(mode="json")
            store = MlflowStore(experiment, self._name(folder), values, run_tags, folder)
            # A search with an edited file has a new run.
            store.client.set_tag(store.run_id, PARENT, self.parent.run_id)
            store.client.log_artifact(store.run_id, str(folder.experiment))
            self.children[expert] = store
        return self.children[expert]

    def _delete_run_before(self, folder: RunFolder, copies: int) -> None:
        """Delete the MLflow run of an expert's model before its last copy, if there is one."""
        client, run_id = self.parent.client, folder.record().get("mlflow_run_id")
        if run_id and client.get_run(run_id).data.tags.get(COPIES) != str(copies):
            client.delete_run(run_id)
            folder.update(mlflow_run_id="")

    def _all(self) -> dict[int, MlflowStore]:
        """Runs of all experts that have one, including those from before a server failure that rebuilt this store."""
        for folder in sorted((self.folder.path / "experts").glob("*")):
            if RunFolder(folder).exists and RunFolder(folder).record().get("mlflow_run_id"):
                self.child(int(folder.name))
        return self.children

    def _name(self, folder: RunFolder) -> str:
        """Name of an expert's run: its number and its searched settings or, in a line of a table, its method."""
        headings = self.record.get("table", {}).get("headings")
        overrides = folder.record()["overrides"]
        trials = [Trial("", one, []) for one in self.spec.configurations or [overrides]]
        label = trial_label(Trial(folder.name, overrides, []), short_names(searched_keys(trials)))
        if headings:
            unique = headings.count(headings[int(folder.name)]) == 1
            label = headings[int(folder.name)] + ("" if unique else f" {label}")
        return f"{folder.name} {label}"[:200]

    def finish(self, models: list[Path]) -> None:
        """Record files, descriptions, weights and the winner of a finished search, and its models: that of the winner,
        `model`, and the one that Hedge has deployed, `deployed`.
        """
        search, client = FinishedSearch.read(self.folder), self.parent.client
        self.parent.log_files()
        client.set_tag(self.parent.run_id, NOTE, search_text(self.folder, self.spec))
        for store in self._all().values():
            client.set_tag(store.run_id, NOTE, run_text(store.folder))
            store.log_points(final_scores(store.folder))
        self._log_weights(search.hedge)
        if winner := search.winner:
            number, step = int(winner.name), winner.records[-1]["round"]
            scores = [(name, value, step) for name, value in search.winner_scores.items()]
            named = [(f"winner/{name}", value, step) for name, value, _ in scores]
            self.parent.log_points([*scores, *named, ("winner/trial", number, step)])
            for key, value in winner.settings.items():
                client.set_tag(self.parent.run_id, f"winner/{key}", str(value)[:TAG])
            client.set_tag(self.child(number).run_id, "winner", "true")
            for model in (one for one in models if one.name == "model"):
                store = self.child(number)
                store.log_points(scores, log_model(model, store, [store, self.parent]))
        if deployed := next((model for model in models if model.name == DEPLOYED), None):
            self._log_deployed(deployed, search.hedge[-1] if search.hedge else {})
        self.end("FINISHED")

    def _log_deployed(self, model: Path, last: RoundRecord) -> None:
        """Record the model that Hedge has deployed: its source is the run of its expert or, for a mixture, the search.

        last: last round of Hedge, with the score of the deployed policy; {}: there is none.
        """
        state = DeployedState.read(self.folder.path / DEPLOYED)
        assert state is not None, "the model was read from there"
        experts, score = list(state.weights), last.get("deployed", {}).get(state.policy) or {}
        source = self.child(experts[0]) if len(experts) == 1 else self.parent
        stores = [source, self.parent] if source is not self.parent else [source]
        known = [(name, score[name]) for name in ("accuracy", "loss") if score.get(name) is not None]
        points = [(f"deployed/{name}", value, last["round"]) for name, value in known]
        self.parent.log_points(points, log_model(model, source, stores))

    def end(self, status: str) -> None:
        """End every open run; an expert that finished, stopped or failed gets its own status instead of `status`."""
        for expert, store in self._all().items():
            outcome = expert_folder(self.folder.path, expert).record()["status"]
            statuses = {"failed": "FAILED", "finished": "FINISHED", "stopped": "FINISHED"}
            store.end(statuses.get(outcome, status))
        self.parent.end(status)


def _without(values: dict[str, Any], searched: Collection[str], above: str = "") -> dict[str, Any]:
    """Nested settings without the searched ones, which are dotted paths, and without lists that have them."""
    return {
        key: _without(value, searched, f"{above}{key}.") if isinstance(value, dict) else value
        for key, value in values.items()
        if f"{above}{key}" not in searched
        if isinstance(value, dict) or not any(path.startswith(f"{above}{key}.") for path in searched)
    }


def search_text(folder: RunFolder, spec: SearchSpec) -> str:
    """Description of a search, including its results if there are any."""
    keys = ", ".join(f"`{key}`" for key in spec.search.space)
    text = sentence(folder.record(), spec.experiment)
    text += f"\nSearch `{spec.search.kind}` over {keys}, by `{spec.search.metric}`.\n"
    summary, results = folder.record().get("summary"), folder.path / "results.md"
    if summary and "hedge_loss" in summary:
        text += f"\n{hedge_sentences(summary)}\n"
    if results.exists():
        _title, _, tables = results.read_text(encoding="utf-8").partition("\n\n")
        text += f"\n## Trials\n\n{tables}"
    return f"{text}{settings(spec.experiment)}\nFolder: `{folder.path.absolute()}`\n"


def table_run(client: MlflowClient, experiment: Experiment, table: str) -> str:
    """Identifier of the parent run of all lines of a published table; creates the run if it does not exist."""
    home = experiment_id(client, experiment)
    query = f"tags.hedgerow_table = '{table}'"
    if runs := client.search_runs([home], query, max_results=1):
        return runs[0].info.run_id
    text = f"Lines of the published table `{table}`; `hedgerow table {table} --report` prints it.\n"
    run = client.create_run(home, tags={"hedgerow_table": table, NOTE: text}, run_name=table)
    client.set_terminated(run.info.run_id)
    return run.info.run_id


def _flat(record: RoundRecord) -> RoundRecord:
    """Record of a Hedge round as MLflow metrics."""
    flat = {key: value for key, value in record.items() if isinstance(value, (int, float))}
    flat |= {f"expected_{name}": value for name, value in record["expected"].items()}
    for policy, score in record.get("deployed", {}).items():
        flat |= {f"deployed_{policy}_{name}": value for name, value in (score or {}).items() if value is not None}
    return flat | {f"weight/{index:03d}": weight for index, weight in enumerate(record["weights"])}
