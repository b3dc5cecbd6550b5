"""Data selection before training (Tuor et al., "Overcoming Noisy and Irrelevant Data in Federated Learning", 2021)."""

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.client_data import ONCE, Batch, BatchSpec, ClientData
from hedgerow.algorithms.core.measures import cross_entropies
from hedgerow.algorithms.core.messages import POOL, Cohort, Exchange, Exchanges, StepResult
from hedgerow.algorithms.core.parts import Part, Parts
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.optim.local_sgd import LocalSGD, minimize
from hedgerow.algorithms.problems.cleaning import NEEDED, Cleaning, found_of, only

COUNTS = ("dropped_wrong", "dropped_samples", "wrong_samples")
"""Counts over the clients' samples, which are reported but not transmitted."""


class Preprocess(FedAvg):
    """FedAvg on the samples that a benchmark model finds plausible: those whose loss under it is at most `threshold`
    [Tuor2021].

    The server trains the benchmark model on its validation samples, the pool of all clients', and sends it to each
    client once, when the client first takes part. The weight of a client is the number of samples that it keeps.
    """

    needs = frozenset({"classes", "cleaning", "validation"})
    weighting = "own"
    parts: ClassVar[Parts] = {"train": {"w": Part("w", "value")}}
    training_steps = ()
    single_exchange = False

    class Hyper(FedAvg.Hyper):
        threshold: float = Field(
            1.5, ge=0, description="largest loss under the benchmark model of a sample that is kept"
        )
        benchmark_steps: int = Field(
            500, ge=1, description="number of steps in which the server trains the benchmark model"
        )
        benchmark_batch_size: int | None = Field(
            50, ge=1, description="samples per step of the benchmark model; null: all"
        )
        benchmark_lr: float = Field(0.1, gt=0, description="learning rate of the benchmark model")

    task: Cleaning

    def incompatibility(self) -> str | None:
        return None if isinstance(self.task, Cleaning) else NEEDED.format("preprocess")

    def init_server(self) -> Tree:
        """`sizes`: number of samples that each client keeps, -1 if not known yet; `counts`: see `COUNTS`."""
        return super().init_server() | {"sizes": torch.full((len(self.task.blocks),), -1.0), "counts": torch.zeros(3)}

    def init_client(self) -> Tree:
        return {"kept": torch.ones(self.task.blocks.shape[1])}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        if "benchmark" not in server:
            benchmark = yield Exchange(
                self.benchmark, {"w": server["w"]}, POOL, batches=self._benchmark_batches, site="pool"
            )
            server = {**server, "benchmark": benchmark.up["w"]}
        new = cohort.clients[(server["sizes"][cohort.clients] < 0).numpy()]
        if len(new):
            selection = yield Exchange(
                self.sift, {"w": server["benchmark"]}, new, batches={"all": ONCE}, reduce="stack"
            )
            counts = [float(selection.metrics[name].sum()) for name in COUNTS]
            sizes = server["sizes"].index_put((torch.from_numpy(new[selection.contributed]),), selection.up["kept"])
            server = {**server, "sizes": sizes, "counts": server["counts"] + torch.tensor(counts)}
        sizes = server["sizes"][cohort.clients].clamp(min=0.0).numpy()
        weights = sizes if sizes.any() else None
        result = yield Exchange(
            self.train, {"w": server["w"]}, cohort.clients, batches=self.hyper.batches, weights=weights
        )
        return {**server, "w": result.up["w"]}

    @property
    def _benchmark_batches(self) -> dict[str, BatchSpec]:
        hyper = self.hyper
        return {"train": BatchSpec(hyper.benchmark_batch_size, steps=hyper.benchmark_steps, split="validation")}

    def benchmark(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Server step: trains a model on the server's own samples only."""
        sgd = LocalSGD(name="sgd").model_copy(update={"lr": hp.benchmark_lr})
        w, loss = minimize(self.task.loss, down["w"], data, sgd)
        return {"w": w}, state, {"loss": loss}

    def sift(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Remembers which samples are kept, and sends their number."""
        # Padding is scattered to a place past the last one, which is then cut off.
        most = len(state["kept"])
        keep, counts = state["kept"].new_zeros(most + 1), torch.zeros(3, device=data.x.device)
        for batch in data.batches("all"):
            plausible = cross_entropies(self.task.logits(down["w"], batch.x), batch.y) <= hp.threshold
            real = torch.ones_like(plausible) if batch.mask is None else batch.mask > 0
            wrong = self.task.wrong[self.task.slots[batch.rows]] & real
            dropped = ~plausible & real
            keep = keep.scatter(0, torch.where(real, self.task.places[batch.rows], most), plausible.to(keep.dtype))
            counts = counts + torch.stack([(dropped & wrong).sum(), dropped.sum(), wrong.sum()])
        state = {**state, "kept": keep[:most]}
        return {"kept": keep[:most].sum()}, state, dict(zip(COUNTS, counts.unbind(0), strict=True))

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> StepResult:
        def loss(w: Tree, batch: Batch) -> Tensor:
            return self.task.loss(w, only(batch, state["kept"][self.task.places[batch.rows]]))

        w, value = minimize(loss, down["w"], data, hp)
        return StepResult({"w": w}, state, {"loss": value}, w)

    def server_metrics(self, server: Tree) -> dict[str, float]:
        """Precision, recall and F1 of dropped samples as predictions of wrong labels; empty if all labels are right."""
        hits, flagged, bad = (int(number) for number in server["counts"])
        return found_of(hits, flagged, bad) if bad else {}
