"""FedSep's LASSO decoder and its encoders: fedsep.md, checks C10 to C12, C16 and C18."""

import numpy as np
import pytest
import torch
from helpers import blobs, distance, partition, run_inline, small_task
from torch import nn

from hedgerow.algorithms.compressed.fedsep_lasso import FedSepLasso
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.transforms.random_projection import BLOCK, GaussianRows
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.platform.runtime.factory import build_data, check_task


class Given(GaussianRows):
    """With this matrix."""

    def __init__(self, matrix):
        super().__init__(*matrix.shape, 0)
        self.matrix = matrix

    def _make(self, number):
        return self.matrix[number * BLOCK : (number + 1) * BLOCK]


def lasso(matrix, **hyper):
    """Its decoder with this sketch, in double precision; theta stands alone."""
    p, d = matrix.shape
    module = nn.Linear(d, 1, bias=False).double()
    algorithm = FedSepLasso(FedSepLasso.Hyper(sketch_size=p, begin="project", **hyper), Task(module))
    algorithm.sketch = Given(torch.as_tensor(matrix, dtype=torch.float64))
    return algorithm


def decoded(algorithm, omega):
    y, trace = algorithm.decode(algorithm.hyper, {"omega": torch.as_tensor(omega, dtype=torch.float64)}, None)
    return y["weight"][0], trace


def encoded(algorithm, omega, v):
    y, trace = algorithm.decode(algorithm.hyper, {"omega": torch.as_tensor(omega, dtype=torch.float64)}, None)
    moved = {"weight": torch.as_tensor(v, dtype=torch.float64)[None]}
    return algorithm.encode(algorithm.hyper, {}, y, trace, moved, None)["omega"]


def sparse_instance(seed=0, p=30, d=60, entries=6):
    rng = np.random.default_rng(seed)
    matrix, theta = rng.normal(size=(p, d)) / d**0.5, np.zeros(d)
    theta[rng.choice(d, entries, replace=False)] = rng.normal(size=entries) + np.sign(rng.normal(size=entries))
    return matrix, matrix @ theta


def objective(matrix, omega, theta, beta):
    return 0.5 * float((torch.as_tensor(matrix) @ theta - torch.as_tensor(omega)).square().sum()) + beta * float(
        theta.abs().sum()
    )


@pytest.mark.parametrize(
    ("matrix", "omega", "beta", "theta", "code"),
    [
        ([[1.0, 0, 0], [0, 1, 0]], [2.0, 0.01], 0.1, [1.9, 0, 0], [-1.0, 0.0]),
        ([[1.0, 0.5]], [1.0], 0.2, [0.8, 0], [-1.0]),
    ],
)
def test_hand_cases(matrix, omega, beta, theta, code):
    algorithm = lasso(np.array(matrix), lasso=beta, decode_steps=300, encoder="exact")
    assert decoded(algorithm, omega)[0].tolist() == pytest.approx(theta, abs=1e-6)
    assert encoded(algorithm, omega, np.ones(len(theta))).tolist() == pytest.approx(code, abs=1e-6)


def test_the_decoder_solves_the_lasso():
    """KKT: S'(omega - S theta) is beta sign(theta) on the support, no larger elsewhere; 0 from beta = |S'omega| on."""
    matrix, omega = sparse_instance()
    theta, _ = decoded(lasso(matrix, lasso=0.02, decode_steps=4000), omega)
    slope = torch.as_tensor(matrix.T @ (omega - matrix @ theta.numpy()))
    on = theta != 0
    assert 0 < int(on.sum()) < 30
    assert torch.allclose(slope[on], 0.02 * theta[on].sign(), atol=1e-6)
    assert (slope[~on].abs() <= 0.02 + 1e-6).all()
    largest = float(np.abs(matrix.T @ omega).max())
    assert (decoded(lasso(matrix, lasso=largest * 1.001, decode_steps=50), omega)[0] == 0).all()
    assert (decoded(lasso(matrix, lasso=largest * 0.99, decode_steps=50), omega)[0] != 0).any()


@pytest.mark.parametrize(("decoder", "bound"), [("ista", lambda k: 0.5 / k), ("fista", lambda k: 2 / (k + 1) ** 2)])
def test_it_converges_as_fast_as_published(decoder, bound):
    """F(theta_k) - F* <= ||theta*||^2 / (2 gamma k), and 2 ||theta*||^2 / (gamma (k + 1)^2) accelerated."""
    matrix, omega = sparse_instance()
    best, _ = decoded(lasso(matrix, lasso=0.02, decode_steps=4000), omega)
    least, size, values = objective(matrix, omega, best, 0.02), float(best.square().sum()), []
    for k in (1, 2, 5, 10, 40):
        theta, trace = decoded(lasso(matrix, lasso=0.02, decode_steps=k, decoder=decoder), omega)
        values.append(objective(matrix, omega, theta, 0.02))
        assert values[-1] - least <= bound(k) * size / trace.gamma + 1e-12
    assert decoder == "fista" or values == sorted(values, reverse=True)


def test_the_accelerated_steps_are_those_of_the_paper():
    """Beck and Teboulle, 2009, equations 4.1 to 4.3, in NumPy."""
    matrix, omega = sparse_instance()
    found, trace = decoded(lasso(matrix, lasso=0.02, decode_steps=6, decoder="fista"), omega)
    x, y, t, gamma = np.zeros(60), np.zeros(60), 1.0, float(trace.gamma)
    for _ in range(6):
        point, last = y - gamma * matrix.T @ (matrix @ y - omega), x
        x = np.sign(point) * np.maximum(np.abs(point) - gamma * 0.02, 0)
        t, before = (1 + (1 + 4 * t**2) ** 0.5) / 2, t
        y = x + (before - 1) / t * (x - last)
    assert found.numpy() == pytest.approx(x, abs=1e-12)


@pytest.mark.exhaustive("convergence")
def test_the_encoder_is_minus_the_derivative_of_the_decoder():
    """C11, and C3: on a converged decode, by finite differences; whatever the decoder's step."""
    matrix, omega = sparse_instance()
    v = np.random.default_rng(1).normal(size=60)
    settings = {"lasso": 0.02, "decode_steps": 4000}
    exact = lasso(matrix, encoder="exact", **settings)
    found = encoded(exact, omega, v)
    for i in range(0, 30, 7):
        ends = [decoded(exact, omega + sign * 1e-5 * np.eye(30)[i])[0].numpy() @ v for sign in (1, -1)]
        assert -(ends[0] - ends[1]) / 2e-5 == pytest.approx(float(found[i]), abs=1e-5)
    on = (decoded(exact, omega)[0] != 0).numpy()
    some = matrix[:, on]
    assert found.numpy() == pytest.approx(-some @ np.linalg.solve(some.T @ some, v[on]), abs=1e-8)
    slower = lasso(matrix, encoder="exact", decode_lr_scale=0.5, **settings)
    assert torch.allclose(encoded(slower, omega, v), found, atol=1e-8)
    errors = [
        float((encoded(lasso(matrix, encode_steps=steps, **settings), omega, v) - found).norm())
        for steps in (10, 300, 5000)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-4
    for encoder, tolerance in (("ridge", 1e-3), ("cg", 1e-3)):
        near = lasso(matrix, encoder=encoder, encode_ridge=1e-7, encode_steps=60, **settings)
        assert torch.allclose(encoded(near, omega, v), found, atol=tolerance)


@pytest.mark.parametrize("decoder", ["ista", "linear"])
def test_unrolled_encoders_are_the_decoders_own_derivative(decoder):
    """After ten steps, far from converged; and the linear pair (section 2.4.4)."""
    matrix, omega = sparse_instance()
    v = torch.from_numpy(np.random.default_rng(1).normal(size=60))
    settings = {"lasso": 0.005} if decoder == "ista" else {"decoder": "linear"}
    algorithm = lasso(matrix, encoder="unrolled", **settings)
    x = torch.from_numpy(omega).requires_grad_()
    y, _ = algorithm.decode(algorithm.hyper, {"omega": x}, None)
    slope = torch.autograd.grad(y["weight"][0] @ v, x)[0]
    assert torch.allclose(encoded(algorithm, omega, v), -slope, atol=1e-10)
    # With the same coordinates alive in each step, the Neumann series of as many terms is just that.
    if decoder == "ista":
        same = lasso(matrix, encoder="unrolled")
        assert torch.allclose(encoded(same, omega, v), encoded(lasso(matrix), omega, v), atol=1e-10)


def test_without_a_penalty_it_is_a_linear_compressor():
    """C12: ISTA tends to the least-norm solution; S Dec omega = omega."""
    matrix, omega = sparse_instance()
    linear, long = lasso(matrix, decoder="linear"), lasso(matrix, decode_steps=6000)
    theta = decoded(linear, omega)[0]
    assert torch.allclose(theta, torch.from_numpy(np.linalg.pinv(matrix) @ omega), atol=1e-8)
    assert torch.allclose(decoded(long, omega)[0], theta, atol=1e-5)
    assert torch.allclose(torch.from_numpy(matrix) @ theta, torch.from_numpy(omega), atol=1e-8)
    kept = [
        float(decoded(lasso(m, decoder="linear"), m @ np.ones(60) / 60**0.5)[0].square().sum())
        for m, _ in map(sparse_instance, range(60))
    ]
    assert np.mean(kept) == pytest.approx(0.5, abs=0.03)


def test_a_sketch_is_the_same_stored_or_not():
    """C18: made again from its seed, block by block, it is the same; and so is everybody's."""
    stored, made = GaussianRows(600, 50, 3), GaussianRows(600, 50, 3, stored=0)
    u, w = torch.randn(50), torch.randn(600)
    assert stored.stored
    assert not made.stored
    assert torch.equal(stored.apply(u), made.apply(u))
    assert torch.equal(stored.transposed(w), made.transposed(w))
    assert torch.allclose(stored.apply(u) @ w, u @ stored.transposed(w), rtol=1e-4)
    assert not torch.equal(stored.apply(u), GaussianRows(600, 50, 4).apply(u))
    matrix = torch.cat([stored._block(i) for i in stored._blocks])
    assert stored.squared_norm == pytest.approx(float(torch.linalg.matrix_norm(matrix, 2)) ** 2, rel=0.05)
    assert float(matrix.var()) * 50 == pytest.approx(1.0, abs=0.02)


def test_the_printed_sign_ascends():
    """C3: h(omega) = f(Dec omega); a small step against Enc{-grad f} lowers it, with Eq. 5 and Remark 2 as printed it
    rises."""
    matrix, omega = sparse_instance()
    target = torch.from_numpy(np.random.default_rng(3).normal(size=60))
    settings = {"lasso": 0.02, "decode_steps": 1000, "encoder": "exact"}
    for algorithm in (lasso(matrix, **settings), lasso(matrix, decoder="linear")):
        theta, trace = decoded(algorithm, omega)

        def h(omega, algorithm=algorithm):
            return float(0.5 * (decoded(algorithm, omega)[0] - target).square().sum())

        slope = encoded(algorithm, omega, target - theta).numpy()
        if algorithm.hyper.decoder == "linear":
            remark2 = torch.linalg.pinv(torch.from_numpy(matrix)).T @ (target - theta)
            assert slope == pytest.approx(-remark2.numpy(), abs=1e-8)
            literal = remark2.numpy()
        else:
            u, s, gamma = torch.diag(trace.active[-1]), torch.from_numpy(matrix), trace.gamma
            eye = torch.eye(60).double()
            literal = (gamma * s @ u @ torch.linalg.solve(eye - (eye - gamma * s.T @ s) @ u, target - theta)).numpy()
        size = 1e-3 / np.linalg.norm(slope)
        assert h(omega - size * slope) < h(omega) < h(omega - size * literal)


# ---- on the platform ------------------------------------------------------------------------------------------------


DATA = blobs(samples=160)
SECTION = {"sketch_size": 20, "steps": 3, "batch_size": 8, "lr": 0.2}


def on_blobs(mode=("vmap", 3), rounds=3, **hyper):
    sizes = partition(np.array([30, 25, 25, 20, 20]), seed=0)
    engine = EngineConfig(mode=mode[0], chunk=mode[1])
    return run_inline(FedSepLasso, small_task(DATA), DATA, sizes, {**SECTION, **hyper}, rounds=rounds, engine=engine)


@pytest.mark.parametrize(
    "hyper",
    [{}, {"lasso": 1e-3, "encoder": "unrolled"}, {"decoder": "fista", "encoder": "cg"}, {"decoder": "linear"}],
    ids=["neumann", "unrolled", "fista and cg", "linear"],
)
def test_loop_and_vmap_agree(hyper):
    loop, vmap = (on_blobs(mode, **hyper) for mode in (("loop", 1), ("vmap", 3)))
    records = [list(loop), list(vmap)]
    assert distance(loop.server["x"], vmap.server["x"]) < 1e-4
    assert records[0][-1]["dropped"] == 0


def test_it_transmits_p_numbers_each_way_and_learns():
    runs = on_blobs(rounds=60)
    records = list(runs)
    assert records[0]["scalars_up"] == records[0]["scalars_down"] == 5 * 20
    assert records[-1]["test_loss"] < 0.6 * records[0]["test_loss"]


def test_where_nothing_is_compressed_it_is_fedavg():
    """p = d with an orthonormal sketch: the decoder gives back what was encoded."""
    task = small_task(DATA)
    d = sum(p.numel() for p in task.init().values())
    runs = on_blobs(sketch_size=d, decoder="linear", batch_size=None)
    orthonormal = Given(torch.linalg.qr(torch.randn(d, d))[0])
    for algorithm in (*runs.worker.algorithms, *(one.algorithm for one in runs.servers)):
        algorithm.inner.sketch = orthonormal
    plain = run_inline(
        algorithm_class("fedavg"),
        small_task(DATA),
        DATA,
        partition(np.array([30, 25, 25, 20, 20]), seed=0),
        {"lr": 0.2, "epochs": None, "steps": 3, "batch_size": None, "aggregation": {"weighting": "uniform"}},
        rounds=3,
    )
    [list(one) for one in (runs, plain)]
    found = runs.servers[0].algorithm.evaluate_params(runs.server)
    assert distance(found, plain.server["w"]) < 1e-4


def test_mistakes_are_sentences():
    def check(**hyper):
        wanted = {
            "name": "test",
            "rounds": 1,
            "clients_per_round": "all",
            "task": {
                "data": {"name": "digits"},
                "partition": {"kind": "iid", "clients": 4},
                "model": {"name": "logreg"},
            },
            "algorithm": {"name": "fedsep", **hyper},
        }
        parsed = parse_experiment(wanted)
        check_task(parsed, *build_data(parsed, None))

    check(sketch_size=10)
    for hyper, sentence in (
        ({"sketch_size": 1000}, "algorithm.sketch_size: 1000 is more than the model's 650 parameters"),
        ({"decode_lr": 1.0, "decode_lr_scale": 1.0}, "give either `decode_lr` or `decode_lr_scale`"),
        ({"decoder": "linear", "lasso": 0.1}, "`decoder: linear` needs `lasso: 0`"),
        (
            {"sketch_size": 10, "sketch": "own"},
            "task.partition.client_test_fraction: with fedsep every client has its own model",
        ),
    ):
        with pytest.raises(UserError) as caught:
            check(**hyper)
        assert sentence in str(caught.value)
