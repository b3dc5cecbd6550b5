"""Comm-FedBiO with local Top-k (Li, Pei, Huang, 2022, Algorithm 2; Iter-topK)."""

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.base import ClientData, Cohort, Exchange, Exchanges
from hedgerow.algorithms.comm_fedbio import shares
from hedgerow.algorithms.comm_fedbio_solver import Change, Solver, SolverSGD, Step
from hedgerow.algorithms.compression import dense, some_k, top_k
from hedgerow.algorithms.oracles import Oracles
from hedgerow.algorithms.trees import Tree


class CommFedBiOTopK(Solver):
    """Clients send the k largest entries of their steps, and keep the rest for the next one.

    k is the number of parameters over `compression`. With random_k and compression 1 everything is sent as it is.
    """

    class Hyper(SolverSGD):
        name: Literal["comm_fedbio_topk"] = "comm_fedbio_topk"
        compressor: Literal["top_k", "random_k"] = Field(
            "top_k", description="which entries are sent: each client's largest; or random ones, the same for all"
        )

    def step(self, step: Step, last: Change, v: Tensor, b: Tensor, cohort: Cohort) -> Exchanges:
        at = some_k(len(b), self.kept(self.hyper, len(b)), cohort.draw(f"indices {step.number}"))
        known = {**last.known, **step.known, **({"at": at} if self.hyper.compressor == "random_k" else {})}
        sent = yield Exchange(
            self.sparsify, last.down, cohort.clients, batches=self.products, known=known, reduce="stack"
        )
        values = shares(sent, cohort)[:, None].to(b) * sent.up["values"]
        indices = sent.up.get("indices", at.expand(values.shape))
        change = dense({"values": values.flatten(), "indices": indices.flatten()}, len(b))
        if "at" in known:
            return Change(change, {"change": {"values": change[at]}}, {"change_at": at})
        where = change.nonzero().flatten()
        return Change(change, {"change": {"values": change[where], "indices": where.int()}}, {})

    def sparsify(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        oracles = Oracles(self.task, hp)
        p, state = self.advanced(oracles, down, state, data)
        p = p + state["residual"]
        message = {"values": p.gather(0, down["at"])} if "at" in down else top_k(p, self.kept(hp, len(p)))
        left = p - dense({"indices": down.get("at"), **message}, len(p))
        return message, {**state, "residual": left if hp.error_feedback else torch.zeros_like(p)}, oracles.metrics([])

    @staticmethod
    def kept(hp: Any, d: int) -> int:
        """k."""
        return max(1, d // hp.compression)
