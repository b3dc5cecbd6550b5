"""Figure 3.1 of the PFL thesis, computed: three devices, one of them active per round, and two parameters.

    python benchmarks/three_devices.py

Each device's loss is a quadratic, adapted by one step of gradient descent. Device 1 is active first, then the others in
turn. Draws the path of the server's model under Per-FedAvg and PFLDyn, with the losses after adaptation, to
benchmarks/results/three_devices.png, and writes the distances from the optimum to three_devices.json.
"""

from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from measuring import RESULTS, conditions, write_results
from torch import Tensor, nn

from hedgerow.algorithms.core.client_data import Batch, ClientData
from hedgerow.algorithms.core.messages import Aggregate, Cohort
from hedgerow.algorithms.core.task import Params, Task
from hedgerow.algorithms.personalized.per_fedavg import PerFedAvg
from hedgerow.algorithms.personalized.pfldyn import PFLDyn

STEP, ROUNDS = 0.3, 60
START = torch.tensor([1.6, 1.9], dtype=torch.float64)
CENTRES = torch.tensor([[-1.8, -0.4], [1.7, -1.3], [0.4, 1.6]], dtype=torch.float64)
CURVATURES = torch.tensor(
    [[[1.0, 0.3], [0.3, 0.5]], [[0.4, -0.1], [-0.1, 0.9]], [[0.7, 0.0], [0.0, 0.3]]], dtype=torch.float64
)
KEPT = torch.eye(2, dtype=torch.float64) - STEP * CURVATURES
# f_i o T_i is a quadratic around the same centre, with this curvature.
ADAPTED = KEPT @ CURVATURES @ KEPT
OPTIMUM = torch.linalg.solve(ADAPTED.sum(0), torch.einsum("kij,kj->i", ADAPTED, CENTRES))
METHODS: dict[str, tuple[Any, dict[str, float]]] = {"Per-FedAvg": (PerFedAvg, {}), "PFLDyn": (PFLDyn, {"alpha": 0.3})}


class Devices(Task):
    """The loss of device k is 1/2 (w - c_k)' A_k (w - c_k); its one sample is k."""

    def __init__(self) -> None:
        super().__init__(nn.Identity(), torch.zeros(()), torch.ones(()))

    def init(self) -> Params:
        return {"x": START}

    def loss(self, w: Params, batch: Batch) -> Tensor:
        k = int(batch.x[0])
        return 0.5 * (w["x"] - CENTRES[k]) @ CURVATURES[k] @ (w["x"] - CENTRES[k])


def path(kind: Any, settings: dict[str, float]) -> np.ndarray:
    """Server's model after each round, shape (rounds + 1, 2)."""
    hyper = kind.Hyper(adapt="maml", adapt_lr=STEP, epochs=None, steps=20, batch_size=None, lr=0.5, **settings)
    algorithm = kind(hyper, Devices())
    server, states = algorithm.init_server(), [algorithm.init_client() for _ in CENTRES]
    models = [server["w"]["x"].numpy()]
    for number in range(ROUNDS):
        device = number % len(CENTRES)
        rounds = algorithm.round(server, Cohort(number + 1, np.array([device]), np.ones(1), len(CENTRES)))
        exchange = next(rounds)
        # Each step adapts on the sample and learns from it.
        twice = torch.zeros(hyper.steps, 2, dtype=torch.long), torch.ones(hyper.steps, 2, dtype=torch.bool)
        sample, label = torch.tensor([float(device)]), torch.zeros(1, dtype=torch.long)
        data = ClientData(sample, label, lambda x: x, {"train": twice}, batched=False)
        up, states[device], _ = exchange.step(hyper, exchange.broadcast, states[device], data)
        try:
            rounds.send(Aggregate(up, np.ones(1, bool), {}))
        except StopIteration as stop:
            server = stop.value
        models.append(server["w"]["x"].numpy())
    return np.stack(models)


def draw(paths: dict[str, np.ndarray]) -> None:
    figure = Figure(figsize=(10, 6), layout="constrained")
    FigureCanvasAgg(figure)
    sides = np.linspace(-2.6, 2.6, 200)
    grid = np.stack(np.meshgrid(sides, sides), -1)
    away = grid[..., None, :] - CENTRES.numpy()
    losses = 0.5 * np.einsum("xyki,kij,xykj->kxy", away, ADAPTED.numpy(), away)
    for axes, (name, models) in zip(figure.subplots(1, 2, sharey=True), paths.items(), strict=True):
        for k, colour in enumerate(["tab:blue", "tab:orange", "tab:green"]):
            axes.contour(sides, sides, losses[k], levels=[0.05, 0.2], colors=colour, linewidths=0.8, alpha=0.7)
            axes.plot(*CENTRES[k], "o", color=colour, label=f"optimum of device {k + 1}")
        axes.contour(sides, sides, losses.mean(0), levels=10, colors="0.8", linewidths=0.6)
        axes.plot(*models.T, ".-", color="0.35", linewidth=0.8, markersize=3, label="server's model")
        axes.plot(*models[:2].T, color="tab:red", linewidth=2, label="round 1: device 1 alone")
        axes.plot(*models[0], "x", color="black", markersize=9, label="start")
        axes.plot(*OPTIMUM, "*", color="black", markersize=14, label="optimum of all")
        axes.set_title(f"{name}: ends {np.linalg.norm(models[-1] - OPTIMUM.numpy()):.1g} from the optimum of all")
        axes.set_aspect("equal")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9)
    figure.savefig(RESULTS / "three_devices.png", dpi=110)


def main() -> None:
    paths = {name: path(*method) for name, method in METHODS.items()}
    away = {name: np.linalg.norm(models - OPTIMUM.numpy(), axis=1) for name, models in paths.items()}
    rows = {
        name: {f"distance after {n} rounds": float(f"{gaps[n]:.3g}") for n in (0, 3, 15, 30, ROUNDS)}
        for name, gaps in away.items()
    }
    write_results("three_devices", conditions() | {"rows": rows})
    draw(paths)


if __name__ == "__main__":
    main()
