"""What FedBiO is compared with, on the quadratic problem in double precision (fedbio.md, sections 3 and 6.1)."""

import numpy as np
import pytest
import torch
from bilevels import Run, problem

from hedgerow.algorithms.bilevel.fednest import FedNest
from hedgerow.algorithms.bilevel.full_hypergradient import FullHypergradient
from hedgerow.algorithms.bilevel.stocbio import StocBiO
from hedgerow.algorithms.core.messages import Cohort

HET = problem()
LOCAL = {"lr": 0.2, "u_lr": 0.2, "upper_lr": 0.1, "single_batch": True}


@pytest.mark.parametrize("settings", [{"u_steps": 5}, {"dense": True}], ids=["iterative", "dense"])
def test_full_hypergradients_reach_the_solution(settings):
    run = Run(FullHypergradient, HET, steps=1, **settings, **LOCAL).rounds(150)
    assert run.distance() < 1e-4
    assert run.exchanges == 150 * (2 + (1 if settings.get("dense") else 5))


class _Length(Cohort):
    """Draws given values."""

    def seed_for(self, purpose):
        return self.length


def test_fednest_estimates_the_series_without_bias():
    """C26: over all lengths of its series, the mean is the Neumann series of N terms, which tends to H^-1 b."""
    n = 12
    run = Run(FedNest, HET, steps=1, u_steps=n, **LOCAL)
    found = []
    for length in range(n):
        cohort = _Length(1, np.arange(8), np.ones(8), 8)
        object.__setattr__(cohort, "length", length)
        generator, reply = run.algorithm._solve(run.server, cohort), None
        while True:
            try:
                reply = run.carry_out(generator.send(reply))
            except StopIteration as stop:
                found.append(stop.value["y"])
                break
    q = HET.task._problems(0.0, local=False)
    b = q.D[0] @ run.server["y"]["y"] - q.e[0]
    step = torch.eye(6).double() - LOCAL["u_lr"] * q.A[0]
    series = sum(LOCAL["u_lr"] * torch.linalg.matrix_power(step, k) @ b for k in range(n))
    assert torch.allclose(torch.stack(found).mean(0), series, atol=1e-6)


@pytest.mark.exhaustive("convergence")
def test_fednest_comes_nearer_with_smaller_steps():
    """C26: what is left is the noise of the series' random length."""
    errors = []
    for upper_lr in (0.1, 0.02):
        settings = {**LOCAL, "upper_lr": upper_lr}
        run = Run(FedNest, HET, steps=1, u_steps=20, **settings).rounds(int(5 / upper_lr))
        errors.append(np.mean([run.rounds(1).distance() for _ in range(40)]))
    assert errors[1] < errors[0] / 1.5
    assert errors[1] < 0.1


def test_fednest_takes_as_many_exchanges_as_it_should():
    """2 T_in + 1 + N' + 2, with N' below N."""
    run = Run(FedNest, HET, steps=2, inner_rounds=3, u_steps=1, **LOCAL).rounds(4)
    assert run.exchanges == 4 * (2 * 3 + 3)


@pytest.mark.exhaustive("convergence")
def test_stocbio_solves_the_pooled_problem():
    one = problem(clients=1)
    run = Run(StocBiO, one, steps=2, neumann_terms=20, **LOCAL).rounds(90)
    assert run.distance() < 3e-3
    assert run.exchanges == 0
