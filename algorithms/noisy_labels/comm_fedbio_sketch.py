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
    """Clients send count sketches of their steps, from which the server recovers the k largest entries [Li2022].

    A sketch is a table of signed sums. two_round (as in sketched SGD, Ivkin et al., 2019): the server then requests
    these entries themselves, so k more numbers are sent; clients keep the rest, and hash functions are drawn anew for
    each step. server: as Algorithm 2 is printed (exactly so with `variant: literal`), the server keeps the rest in
    tables, which grow without bound if k is too large for them. zero_cells: the same, but the cells of the recovered
    entries are emptied.
    """

    class Hyper(SolverSGD):
        recovery: Literal["two_round", "server", "zero_cells"] = Field(
            "two_round", description="how entries are recovered from the tables, and where the rest is kept"
        )
        rows: int = Field(5, ge=1, description="r, number of rows of a table, which has parameters / compression cells")
        recovered: int | None = Field(
            None,
            ge=1,
            description="k, number of entries recovered per step; null: with two_round the number of columns of a "
            "table, else a 60th of it",
        )

    caution = 0.3

    @property
    def sends_b(self) -> bool:
        return self.hyper.recovery == "two_round" or self.hyper.variant == "literal"

    def incompatibility(self) -> str | None:
        d, rows, recovered = count(self.start()["y"]), self.hyper.rows, self.hyper.recovered
        if rows * self.hyper.compression > d:
            return (
                f"algorithm.compression: tables of {rows} rows have no columns for the model's {d} parameters at "
                f"compression {self.hyper.compression}; lower it to at most {max(1, d // rows)}"
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
        result = yield Exchange(
            self.table, last.broadcast, cohort.clients, batches=self.products, weights=cohort.sizes, local_inputs=known
        )
        cohort = cohort.subset(result.contributed)
        if fresh:
            at = sketch.heavy(result.up["table"], k)["indices"]
            values = yield Exchange(self.values, {"at": at}, cohort.clients, weights=cohort.sizes)
            change = dense({**values.up, "indices": at}, len(b))
            return Change(change, {"change": values.up}, {"change_at": at}, cohort.subset(values.contributed))
        table = result.up["table"] + last.rest
        if not self.sends_b:
            table = table - step.alpha * sketch.sketch(b)
        entries = sketch.heavy(table, k)
        change = dense(entries, len(b))
        return Change(change, {"change": entries}, {}, cohort, self._rest(sketch, table, entries, change))

    def _rest(self, sketch: CountSketch, table: Tensor, found: Tree, change: Tensor) -> Tensor:
        """Rest of a table after entries are recovered."""
        if not self.hyper.error_feedback:
            return torch.zeros_like(table)
        if self.hyper.recovery == "zero_cells":
            return table.scatter(1, sketch.buckets[:, found["indices"].long()], 0.0)
        return table - sketch.sketch(change)

    @staticmethod
    def width(hp: Any, d: int) -> int:
        """Number of columns of a table."""
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
        """Sends the entries that the server requests; keeps the others."""
        p, at = state["residual"], down["at"].long()
        rest = p.scatter(0, at, 0.0) if hp.error_feedback else torch.zeros_like(p)
        return {"values": p.gather(0, at)}, {**state, "residual": rest}, {}
