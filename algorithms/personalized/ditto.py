"""Ditto (Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", 2021)."""

from dataclasses import replace
from typing import Any

from pydantic import Field

from hedgerow import BatchSpec, ClientData, FedAvg, Proximal, StepResult, Tree, minimize


class Ditto(FedAvg):
    """FedAvg, and a personal model per client, which a proximal term keeps near the server's model [Li2021a].

    The personal model v is client state and is never transmitted. It starts from the initial model, and each round in
    which the client takes part trains it further, with mini-batches of its own. Clients are scored with it.
    """

    is_personal = True

    class Hyper(FedAvg.Hyper):
        lam: float = Field(
            0.1, ge=0, description="weight lambda of the proximal term of personal models; 0: local training"
        )

        @property
        def batches(self) -> dict[str, BatchSpec]:
            """The mini-batches of one round, for the server's model and for the personal model."""
            batches = super().batches
            return batches if self.solver == "newton" else {**batches, "personal": batches["train"]}

    def init_client(self) -> Tree:
        return {"v": self.task.init()}

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> StepResult:
        result = super().train(hp, down, state, data)
        near, batches = Proximal(hp.lam, down["w"]), data.batches("personal")
        v, loss = minimize(self.task.loss, state["v"], data, hp, proximal=near, batches=batches)
        return result._replace(state={"v": v}, metrics={**result.metrics, "personal_loss": loss})

    def personal_model(self, w: Tree, state: Tree) -> Tree:
        return state["v"]

    def evaluate_client(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Scores the personal model; for classes also the server's model, as `global_test_accuracy` and its loss."""
        up, _, metrics = super().evaluate_client(hp, {**down, "w": state["v"]}, state, data)
        if self.task.targets != "classes":
            return up, state, metrics
        # Predictions are those of the personal model.
        task = replace(self.task.with_accuracy, scored=None)
        totals = task.tally(lambda batch: task.score(down["w"], batch), data)
        common = {f"global_{name}": total for name, total in totals.items() if name != "samples"}
        return up, state, {**metrics, **common}

    def incompatibility(self) -> str | None:
        mode = self.task.train_mode
        if mode is not None and mode.kept:
            return (
                f"task.model.buffers: {self.hyper.name} trains two models on each client, and there is one set of "
                "running statistics; set it to ignore, or choose a model without batch norm"
            )
        return super().incompatibility()
