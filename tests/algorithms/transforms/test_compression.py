"""Compressors: contraction, linearity, recovery, unbiasedness (comm_fedbio.md, section 6.3)."""

import numpy as np
import pytest
import torch

from hedgerow.algorithms.core.pytree import leaves
from hedgerow.algorithms.transforms.sketches import CountSketch, GaussianSketch, SparseEmbedding
from hedgerow.algorithms.transforms.sparse_vectors import dense, random_k, top_k
from hedgerow.platform.runtime.exchange_costs import CommunicationCost


def vector(d, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=d))


@pytest.mark.parametrize("k", [1, 7, 100])
def test_top_k_contracts(k):
    u = vector(100)
    rest = u - dense(top_k(u, k), 100)
    assert rest.square().sum() <= (1 - k / 100) * u.square().sum() + 1e-12
    kept = set(top_k(u, k)["indices"].tolist())
    assert kept == set(u.abs().argsort(descending=True)[:k].tolist())


def test_random_k_keeps_what_the_seed_chooses():
    u = vector(50)

    def kept(seed):
        at = random_k(50, 20, seed)
        return dense({"values": u[at], "indices": at}, 50)

    found = kept(3)
    there = found != 0
    assert int(there.sum()) == 20
    assert torch.equal(found[there], u[there])
    # Over seeds every coordinate is as likely: on average it contracts by 1 - k/d.
    left = np.mean([float((u - kept(seed)).square().sum()) for seed in range(400)])
    assert left == pytest.approx(0.6 * float(u.square().sum()), rel=0.05)


def test_what_a_message_costs():
    u, ledger = vector(1000).float(), CommunicationCost()
    ledger.add_download(top_k(u, 10), 1)
    assert (ledger.scalars_down, ledger.bytes_down) == (20, 80)
    ledger.add_download({"table": CountSketch.draw(1000, 5, 20, 0).sketch(u)}, 1)
    assert ledger.scalars_down == 120


def test_count_sketches_are_linear_and_exact_on_a_single_entry():
    hashes = CountSketch.draw(500, 5, 40, seed=1)
    u, v = vector(500, 1), vector(500, 2)
    assert torch.allclose(hashes.sketch(2 * u - 3 * v), 2 * hashes.sketch(u) - 3 * hashes.sketch(v))
    alone = torch.zeros(500).double()
    alone[123] = -7.0
    assert torch.equal(dense(hashes.heavy(hashes.sketch(alone), 1), 500), alone)


def test_count_sketches_find_heavy_hitters():
    """Five entries of size 10 in unit noise: all five, in most of the seeds.

    In a third of them some other entry meets a large one with the same sign in three of its five rows, for .39 such
    entries are expected: 10,000 (5 over 3) (5/200)^3 / 4. In less than half of these it looks larger than the least of
    the five: about .86 are right.
    """
    found = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        u = torch.from_numpy(rng.normal(size=10_000) / 100)
        where = rng.choice(10_000, 5, replace=False)
        u[where] = 10.0
        hashes = CountSketch.draw(10_000, 5, 200, seed)
        kept = hashes.heavy(hashes.sketch(u), 5)["indices"].tolist()
        found.append(set(kept) == set(where.tolist()))
    assert np.mean(found) >= 0.75


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_estimates_are_unbiased(rows):
    u = vector(1000)
    errors = [h.estimate(h.sketch(u)) - u for h in (CountSketch.draw(1000, rows, 50, seed) for seed in range(30))]
    assert abs(float(torch.stack(errors).mean())) < 0.1


def test_an_estimate_errs_by_the_norm_over_the_columns():
    u = vector(2000)
    drawn = [CountSketch.draw(2000, 1, 100, seed) for seed in range(20)]
    errors = [hashes.estimate(hashes.sketch(u)) - u for hashes in drawn]
    variance = float(torch.stack(errors).square().mean())
    assert variance == pytest.approx(float(u.square().sum()) / 100, rel=0.1)


@pytest.mark.parametrize("kind", [SparseEmbedding, GaussianSketch])
def test_products_of_sketches_err_as_their_number_of_rows_says(kind):
    """E ||A'S'SB - A'B||^2 <= (2/r) ||A||^2 ||B||^2: the mean squared relative error times r is near 1."""
    rng = np.random.default_rng(0)
    a, b = (torch.from_numpy(rng.normal(size=(400, n))) for n in (5, 7))
    for r in (25, 100):
        errors = []
        for seed in range(60):
            s = kind.draw(400, r, seed)
            sa, sb = (torch.stack([s.apply(column) for column in m.T], 1) for m in (a, b))
            errors.append(float((sa.T @ sb - a.T @ b).square().sum() / (a.square().sum() * b.square().sum())))
        assert 0.7 < np.mean(errors) * r < 2.0


@pytest.mark.parametrize("kind", [SparseEmbedding, GaussianSketch])
def test_the_transposed_sketch_is_the_transpose(kind):
    s = kind.draw(60, 12, 5)
    u, w = vector(60), vector(12)
    assert torch.allclose(s.apply(u) @ w, u @ s.transposed(w))


def test_as_many_rows_as_the_corollary_asks_suffice():
    """r > 18 / (eps^2 delta): eps .5, delta .25 ask for 289 rows; at most a quarter of the draws may fail."""
    rng = np.random.default_rng(0)
    a, b = (torch.from_numpy(rng.normal(size=(400, 4))) for _ in range(2))
    failures = 0
    for seed in range(60):
        s = SparseEmbedding.draw(400, 289, seed)
        sa, sb = (torch.stack([s.apply(column) for column in m.T], 1) for m in (a, b))
        failures += bool((sa.T @ sb - a.T @ b).norm() > 0.5 * a.norm() * b.norm())
    assert failures / 60 <= 0.25


def test_a_sparse_embedding_keeps_the_lengths_in_a_subspace():
    """Corollary 2: with r > 18 / ((eps / l)^2 delta) rows no square of a length, of l dimensions, changes by more than
    eps."""
    rng = np.random.default_rng(0)
    basis = torch.from_numpy(np.linalg.qr(rng.normal(size=(1000, 3)))[0])
    rows, failures = int(18 / ((0.9 / 3) ** 2 * 0.25)) + 1, 0
    for seed in range(40):
        s = SparseEmbedding.draw(1000, rows, seed)
        stretched = torch.linalg.svdvals(torch.stack([s.apply(column) for column in basis.T], 1)).square()
        failures += bool((stretched - 1).abs().max() > 0.9)
    assert failures / 40 <= 0.25


def test_they_run_under_vmap():
    u = torch.stack([vector(80, seed) for seed in range(3)])
    hashes, embedding = CountSketch.draw(80, 3, 10, 0), SparseEmbedding.draw(80, 9, 0)

    def all_of_them(u):
        heavy = dense(hashes.heavy(hashes.sketch(u), 4), 80)
        return heavy, dense(top_k(u, 5), 80), embedding.transposed(embedding.apply(u))

    together = torch.func.vmap(all_of_them)(u)
    for i in range(3):
        for found, alone in zip(together, all_of_them(u[i]), strict=True):
            assert torch.allclose(found[i], alone)
    assert all(torch.isfinite(leaf).all() for leaf in leaves({"a": together[0]}))


def test_exchanges_that_run_in_parallel_are_one_communication_round():
    round, single = CommunicationCost(), CommunicationCost(scalars_up=3, bytes_up=12, exchanges=1, gpu_peak_mb=2.0)
    round.add([single, CommunicationCost(scalars_down=1, bytes_down=4, exchanges=1), CommunicationCost()])
    assert round == CommunicationCost(1, 3, 4, 12, exchanges=1, gpu_peak_mb=2.0)
    round.add([single])
    assert (round.exchanges, round.scalars_up) == (2, 6)
