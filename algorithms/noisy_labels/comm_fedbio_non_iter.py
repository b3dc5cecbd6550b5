"""Comm-FedBiO with a sketched linear system (Li, Pei, Huang, 2022, Algorithm 3; Non-iter)."""

from math import isqrt
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.bilevel.derivatives import Derivatives
from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree, flat, leaves, like, stack, tree_map
from hedgerow.algorithms.noisy_labels.comm_fedbio import WHOLE, CommFedBiO, CommSGD, shares_of
from hedgerow.algorithms.transforms.sketches import SKETCHES

ROUGHLY = 1e-6
"""Singular values below this share of the largest are noise of single precision."""


class CommFedBiONonIter(CommFedBiO):
    """Solves the sketched system S2 H S1' w = S2 b by least squares, and returns v = S1' w (Eq. 13, 14) [Li2022].

    S1 (r1, d) and S2 (r2, d) are drawn anew in every round, where r2 = 2 r1 and r1 r2 = parameters / compression. A
    client computes r1 Hessian products. v is in a space of r1 dimensions. If neither b nor the samples' gradients are
    in the dominant eigenspace of H, the estimate is poor at any compression.
    """

    class Hyper(CommSGD):
        sketch: Literal["sparse", "gaussian"] = Field("sparse", description="kind of the sketches S1 and S2")
        one_round: bool = Field(
            False,
            description="clients send their samples' derivatives along all rows of S1 at once, r1 numbers per sample",
        )

    def crosses(self, y: Tree, b: Tensor, cohort: Cohort) -> Exchanges:
        d, kind, one_round = len(b), SKETCHES[self.hyper.sketch], self.hyper.one_round
        r1 = self.size(d)
        s1, s2 = kind.draw(d, r1, cohort.seed_for("S1")), kind.draw(d, 2 * r1, cohort.seed_for("S2"))
        sketched = yield Exchange(
            self.sketch,
            {"y": y},
            cohort.clients,
            batches=self.products | (WHOLE if one_round else {}),
            reduce="stack" if one_round else "mean",
            weights=cohort.sizes,
            local_inputs={"s1": s1.tree, "s2": s2.tree},
            padding_up=r1 * self.task.padding(cohort.clients) if one_round else None,
        )
        cohort = cohort.subset(sketched.contributed)
        a = torch.tensordot(shares_of(cohort), sketched.up["a"].double(), 1) if one_round else sketched.up["a"].double()
        w = torch.linalg.lstsq(a, s2.apply(b).double()[:, None], rcond=ROUGHLY, driver="gelsd").solution[:, 0].to(b)
        if not torch.isfinite(w).all():
            return None
        if one_round:
            return tree_map(lambda leaf: torch.einsum("cr...,r->c...", leaf, w.to(leaf)), sketched.up["along"]), cohort
        result = yield self.crossing({"w": w}, {"s1": s1.tree}, cohort)
        return result.up, cohort.subset(result.contributed)

    def size(self, d: int) -> int:
        """Number of rows of S1, r1."""
        return max(1, isqrt(d // (2 * self.hyper.compression)))

    # ---- the clients ------------------------------------------------------------------------------------------------

    def sketch(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """S2 H_m S1', (2 r1, r1), and in the one-round form also the cross products along each row of S1, (r1, ...)."""
        oracles, kind, z = Derivatives(self.task, hp), SKETCHES[hp.sketch], {**state, "y": down["y"]}
        s1, s2, some = kind(**down["s1"]), kind(**down["s2"]), next(leaves(down["y"]))
        batch = next(data.batches("product"))
        columns, along = [], []
        for one in torch.eye(s1.r, dtype=some.dtype, device=some.device).unbind(0):
            v = like(s1.transposed(one), z["y"])
            columns.append(s2.apply(flat(oracles.curvature(z, batch, v))))
            if hp.one_round:
                along.append(oracles.cross(z, next(data.batches("whole")), v))
        return {"a": torch.stack(columns, 1)} | ({"along": stack(*along)} if along else {}), z, oracles.metrics([])

    def solution(self, hp: Any, down: Tree, state: Tree) -> Tensor:
        return SKETCHES[hp.sketch](**down["s1"]).transposed(down["w"])
