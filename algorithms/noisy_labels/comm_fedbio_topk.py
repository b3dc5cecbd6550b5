"""Comm-FedBiO with local Top-k (Li, Pei, Huang, 2022, Algorithm 2; Iter-topK)."""

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.bilevel.derivatives import Derivatives
from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.noisy_labels.comm_fedbio import shares_of
from hedgerow.algorithms.noisy_labels.comm_fedbio_solver import Change, Solver, SolverSGD, Step
from hedgerow.algorithms.transforms.sparse_vectors import dense, random_k, top_k


class CommFedBiOTopK(Solver):
    """Clients send the k largest entries of their steps, and keep the rest for the next step [Li2022].

    k is the number of parameters divided by `compression`. With random_k and compression 1, steps are sent
    uncompressed.
    """

    class Hyper(SolverSGD):
        compressor: Literal["top_k", "random_k"] = Field(
            "top_k",
            description="entries that are sent: each client's largest; or random ones, the same for all clients",
        )

    def step(self, step: Step, last: Change, b: Tensor) -> Exchanges:
        cohort, known = last.cohort, {**last.local_inputs, **step.local_inputs}
        if self.hyper.compressor == "random_k":
            known["at"] = random_k(len(b), self.entries(self.hyper, len(b)), cohort.seed_for(f"indices {step.number}"))
        result = yield Exchange(
            self.sparsify, last.broadcast, cohort.clients, batches=self.products, local_inputs=known, reduce="stack"
        )
        contributors = cohort.subset(result.contributed)
        values = shares_of(contributors)[:, None].to(b) * result.up["values"]
        if "at" in known:
            total = {"values": values.sum(0), "indices": known["at"]}
            return Change(
                dense(total, len(b)), {"change": {"values": values.sum(0)}}, {"change_at": known["at"]}, contributors
            )
        change = dense({"values": values.flatten(), "indices": result.up["indices"].flatten()}, len(b))
        where = change.nonzero().flatten()
        return Change(change, {"change": {"values": change[where], "indices": where.int()}}, {}, contributors)

    def sparsify(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        oracles = Derivatives(self.task, hp)
        p, state = self.advanced(oracles, down, state, data)
        p = p + state["residual"]
        message = {"values": p.gather(0, down["at"])} if "at" in down else top_k(p, self.entries(hp, len(p)))
        rest = p - dense({"indices": down.get("at"), **message}, len(p))
        return message, {**state, "residual": rest if hp.error_feedback else torch.zeros_like(p)}, oracles.metrics([])

    @staticmethod
    def entries(hp: Any, d: int) -> int:
        """Number of entries that are sent, k."""
        return max(1, d // hp.compression)
