"""Comm-FedBiO with count sketches (Li, Pei, Huang, 2022, Algorithm 2; Iter-sketch)."""

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.bilevel.derivatives import Derivatives
from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree, count
from hedgerow.algorithms.noisy_labels.comm_fedbio_solver import Change, Solver, SolverSGD, Step
from hedgerow.algorithms.transforms.sketches import CountSketch
from hedgerow.algorithms.transforms.sparse_vectors import dense


class CommFedBiOSketch(Solver):
    """Clients send tables of signed sums of their steps, from which the server recovers the k largest entries.

    two_round (as sketched SGD, Ivkin et al., 2019): the server then asks for those entries themselves; clients keep the
    rest, and hash functions are drawn anew for each step; k more numbers are sent. server: as Algorithm 2 is printed
    (with `variant: literal` to the letter), the server keeps the rest, in tables; that grows without bound where k is
    too large for the tables. zero_cells: the same, but the cells of the recovered entries are emptied.
    """

    class Hyper(SolverSGD):
        recovery: Literal["two_round", "server", "zero_cells"] = Field(
            "two_round", description="how entries come out of the tables, and where the rest is kept"
        )
        rows: int = Field(5, ge=1, description="r, rows of a table, which has parameters / compression cells")
        recovered: int | None = Field(
            None,
            ge=1,
            description="k, entries recovered in a step; null: as many as a table has columns in two rounds, else a "
            "60th of them",
        )

    caution = 0.3

    @property
    def sends_b(self) -> bool:
        return self.hyper.recovery == "two_round" or self.hyper.variant == "literal"

    def incompatibility(self) -> str | None:
        d, rows, recovered = count(self.start()["y"]), self.hyper.rows, self.hyper.recovered
        if rows * self.hyper.compression > d:
            return (
                f"algorithm.compression: tables of {rows} rows have no room for the model's {d} parameters at rate "
                f"{self.hyper.compression}; lower it to {max(1, d // rows)} at most"
            )
        if recovered and recovered > d:
            return f"algorithm.recovered: {recovered} entries are more than the model's {d} parameters; lower it"
        return None

    def step(self, step: Step, last: Change, b: Tensor) -> Exchanges:
        cohort, fresh = last.cohort, self.hyper.recovery == "two_round"
        seed = cohort.seed_for(f"hashes {step.number if fresh else 0}")
        sketch = CountSketch.draw(len(b), self.hyper.rows, self.width(self.hyper, len(b)), seed)
        k = self.hyper.recovered or (sketch.width if fresh else max(1, sketch.width // 60))
        known = {**last.local_inputs, **step.local_inputs, "hashes": sketch.tree}
        sent = yield Exchange(
            self.table, last.broadcast, cohort.clients, batches=self.products, weights=cohort.sizes, local_inputs=known
        )
        cohort = cohort.subset(sent.contributed)
        if fresh:
            at = sketch.heavy(sent.up["table"], k)["indices"]
            asked = yield Exchange(self.values, {"at": at}, cohort.clients, weights=cohort.sizes)
            change = dense({**asked.up, "indices": at}, len(b))
            return Change(change, {"change": asked.up}, {"change_at": at}, cohort.subset(asked.contributed))
        table = sent.up["table"] + last.rest
        if not self.sends_b:
            table = table - step.alpha * sketch.sketch(b)
        found = sketch.heavy(table, k)
        change = dense(found, len(b))
        return Change(change, {"change": found}, {}, cohort, self._rest(sketch, table, found, change))

    def _rest(self, sketch: CountSketch, table: Tensor, found: Tree, change: Tensor) -> Tensor:
        """What is left of a table once entries are recovered."""
        if not self.hyper.error_feedback:
            return torch.zeros_like(table)
        if self.hyper.recovery == "zero_cells":
            return table.scatter(1, sketch.buckets[:, found["indices"].long()], 0.0)
        return table - sketch.sketch(change)

    @staticmethod
    def width(hp: Any, d: int) -> int:
        """Columns of a table."""
        return max(1, d // (hp.compression * hp.rows))

    # ---- the clients ------------------------------------------------------------------------------------------------

    def table(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        oracles = Derivatives(self.task, hp)
        p, state = self.advanced(oracles, down, state, data)
        if hp.recovery == "two_round":
            p = p + state["residual"]
            state = {**state, "residual": p}
        sketch = CountSketch(**down["hashes"], width=self.width(hp, len(p)))
        return {"table": sketch.sketch(p)}, state, oracles.metrics([])

    def values(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """The entries that the server asks for; the others are kept."""
        p, at = state["residual"], down["at"].long()
        left = p.scatter(0, at, 0.0) if hp.error_feedback else torch.zeros_like(p)
        return {"values": p.gather(0, at)}, {**state, "residual": left}, {}
