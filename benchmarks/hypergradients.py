"""Accuracy of Comm-FedBiO's estimates of the hypergradient by compression rate, and the reasons for it.

    python benchmarks/hypergradients.py --data-root FOLDER [--rounds 5 20 80] [--rates 1 20 100 1000]

MNIST, 10 clients with 500 samples each, 40 % of their labels wrong, an MLP with 128 units, Gauss-Newton products. After
each number of FedAvg rounds, at weights of 1, the reference solves the linear system by conjugate gradients on all
data. Each estimator then runs once, unchanged. The results are, for its hypergradient, the relative error, the cosine
with the reference, and the chance that it moves a wrong label's weight below a right one's (AUC). They also cover the
paper's explanation: the share of energy in the largest entries of the quadratic's gradient and of the Hessian's
columns, and the stable rank.
Writes benchmarks/results/hypergradients.json.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import conditions, write_results
from torch import Tensor

from hedgerow.algorithms.bilevel.derivatives import Derivatives
from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.messages import Cohort, Exchanges
from hedgerow.algorithms.core.pytree import Tree, flat, like
from hedgerow.algorithms.optim.hypergradient import conjugate_gradient
from hedgerow.algorithms.problems.cleaning import detection
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.runtime.exchange_costs import CommunicationCost
from hedgerow.platform.runtime.executor import Executor
from hedgerow.platform.runtime.factory import build_algorithms, build_data
from hedgerow.platform.runtime.transport import InProcess
from hedgerow.platform.runtime.worker import Worker
from hedgerow.searchspaces.spaces.space import without_slots

ESTIMATORS: dict[str, dict[str, Any]] = {
    "uncompressed": {"name": "comm_fedbio_topk", "compressor": "random_k", "compression": 1},
    "Iter-topK": {"name": "comm_fedbio_topk"},
    "Iter-topK without error feedback": {"name": "comm_fedbio_topk", "error_feedback": False},
    "Iter-topK, literal": {"name": "comm_fedbio_topk", "variant": "literal"},
    "random k": {"name": "comm_fedbio_topk", "compressor": "random_k"},
    "Iter-sketch": {"name": "comm_fedbio_sketch"},
    "Iter-sketch, as printed": {"name": "comm_fedbio_sketch", "recovery": "server"},
    "Non-iter": {"name": "comm_fedbio_non_iter"},
}
ROBUST = {"lr": 0.1, "batch_size": 256, "ridge": 1e-3}
PLAIN = {
    **{"name": "fedavg", "lr": 0.1, "batch_size": 256, "steps": 5, "epochs": None, "weight_decay": 1e-3},
    "aggregation": {"weighting": "samples"},
}


class Bench:
    """The clients' data, and an algorithm that produces single estimates."""

    def __init__(self, data_root: Path | None, section: dict[str, Any]):
        partition = {"kind": "iid", "clients": 10, "samples_per_client": 550, "validation": 1 / 11, "label_noise": 0.4}
        self.experiment = parse_experiment(
            {
                "name": "hypergradients",
                "rounds": 1,
                "participation": 1.0,
                "task": {
                    **{"data": {"name": "mnist"}, "partition": partition, "model": {"name": "mlp", "hidden": [128]}},
                    "problem": {"kind": "cleaning", "weights": "clipped"},
                },
                **without_slots(section),
                "engine": {"mode": "loop"},
            }
        )
        self.dataset, self.partition = build_data(self.experiment, data_root)
        worker = Worker(self._algorithms(), self.dataset, self.partition, 0, self.experiment.resources)
        self.algorithm: Any = self._algorithms()[0]
        self.executor = Executor([self.experiment], InProcess(lambda: worker), 1, [None])
        self.cohort = self.cohort_of(1)

    def cohort_of(self, round: int) -> Cohort:
        sizes = self.partition.train_sizes
        return Cohort(round, np.arange(10), sizes, 10, population_sizes=sizes)

    def _algorithms(self) -> list[Any]:
        return build_algorithms([self.experiment], self.dataset, self.partition)

    def drive(self, generator: Exchanges) -> tuple[Any, CommunicationCost]:
        """Carry out a generator's exchanges; returns its result and the communication cost."""
        cost, reply = CommunicationCost(), None
        for number in range(10_000):
            try:
                exchange = generator.send(reply)
            except StopIteration as stop:
                return stop.value, cost
            reply = self.executor.run([replace(exchange, cohort=self.cohort, position=number)])[0]
            cost.add([reply.cost])
        raise AssertionError

    def estimate(self, y: Tree, b: Tensor) -> Exchanges:
        """Exchanges of the local steps, in which clients learn their weights, and of the estimate at `y`."""
        yield self.algorithm._training(self.algorithm.init_server() | {"y": y}, self.cohort)
        return (yield from self.algorithm.crosses(y, b, self.cohort))

    def system(self, y: Tree) -> "System":
        """The linear system that is estimated, on all data."""
        rows = torch.from_numpy(self.partition.rows("train"))
        own = torch.from_numpy(self.partition.rows("validation"))
        labels, right = torch.from_numpy(self.partition.labels), torch.from_numpy(self.dataset.y_train)
        x, task = torch.from_numpy(self.dataset.x_train), self.algorithm.task
        train = Batch(task.prepare(x[rows]), labels[rows], rows=rows)
        validation = Batch(task.prepare(x[own]), right[own], rows=own)
        return System(Derivatives(task, self.experiment.algorithm), {**task.start(), "y": y}, train, validation)


class System:
    """The system H v = b at a state, and the hypergradient. v: the solution as a vector."""

    def __init__(self, oracles: Derivatives, z: Tree, train: Batch, validation: Batch):
        self.oracles, self.z, self.train = oracles, z, train
        self.b = flat(oracles.upper_slopes(z, validation).y)
        solution = conjugate_gradient(self._product, like(self.b, z["y"]), 150)
        self.v = flat(solution)
        self.hypergradient = -oracles.cross(z, train, solution)["weights"] * len(train.y)

    def _product(self, v: Tree) -> Tree:
        return self.oracles.curvature(self.z, self.train, v)

    def product(self, v: Tensor) -> Tensor:
        return flat(self._product(like(v, self.z["y"])))

    def sparsity(self) -> dict[str, float]:
        """Shares of energy in the d/20 and d/1000 largest entries, and the stable rank ||H||_F^2 / ||H||^2."""
        d = len(self.b)
        generator = torch.Generator().manual_seed(0)
        some = torch.randint(d, (20,), generator=generator)
        columns = [self.product(column) for column in torch.zeros(20, d).scatter(1, some[:, None], 1.0)]
        # Rows of pixels that are always black are zero except for the ridge.
        columns = [column for column in columns if column.norm() > 0.01] or columns
        probes = [self.product(torch.randn(d, generator=generator)).square().sum() for _ in range(20)]
        top = torch.randn(d, generator=generator)
        for _ in range(20):
            top = self.product(top / top.norm())
        figures: dict[str, float] = {}
        for rate in (20, 1000):
            figures[f"gradient, largest d/{rate}"] = share(self.b, d // rate)
            figures[f"Hessian's columns, largest d/{rate}"] = float(np.mean([share(c, d // rate) for c in columns]))
        residual = self.product(0.5 * self.v) - self.b
        figures["gradient half way, largest d/20"] = share(residual, d // 20)
        figures["stable rank"] = float(torch.stack(probes).mean() / top.norm() ** 2)
        return figures


def share(u: Tensor, k: int) -> float:
    """Share of the squared norm in the k largest entries."""
    energy = u.square()
    return float(energy.topk(k).values.sum() / energy.sum())


def judged(estimate: Tensor, reference: Tensor, wrong: Tensor) -> dict[str, float]:
    """Quality of an estimate relative to the reference, and as a detector of wrong labels."""
    # A large derivative lowers the weight.
    ranks = torch.argsort(torch.argsort(-estimate)) / len(estimate)
    return {
        "relative error": float((estimate - reference).norm() / reference.norm()),
        "cosine": float(torch.cosine_similarity(estimate, reference, dim=0)),
        "auc": detection(ranks, wrong)["cleaning_auc"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--rounds", type=int, nargs="+", default=[5, 20, 80])
    parser.add_argument("--rates", type=int, nargs="+", default=[1, 20, 100, 1000])
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    trainer = Bench(arguments.data_root, PLAIN)
    server, states = trainer.algorithm.init_server(), {}
    for round in range(1, max(arguments.rounds) + 1):
        trainer.cohort = trainer.cohort_of(round)
        server, _ = trainer.drive(trainer.algorithm.round(server, trainer.cohort))
        states[round] = server["w"]
    results: dict[str, Any] = {}
    for round in arguments.rounds:
        bench = Bench(arguments.data_root, {**ROBUST, "name": "comm_fedbio_topk"})
        system = bench.system(states[round])
        rows: dict[str, Any] = {"sparsity": system.sparsity()}
        rows["reference"] = judged(system.hypergradient, system.hypergradient, bench.algorithm.task.wrong)
        for heading, section in ESTIMATORS.items():
            for rate in arguments.rates if "compression" not in section else [1]:
                if (heading, rate) == ("Non-iter", 1):
                    # Skipped: hundreds of Hessian products per client.
                    continue
                steps = {} if heading == "Non-iter" else {"u_steps": arguments.steps}
                one = Bench(arguments.data_root, {**ROBUST, "compression": rate, **section, **steps})
                outcome, cost = one.drive(one.estimate(states[round], system.b))
                name = heading if "compression" in section else f"{heading}, rate {rate}"
                if outcome is None:
                    rows[name] = "grew without bound"
                    continue
                crosses, cohort = outcome
                weights = torch.from_numpy(cohort.sizes)
                estimate = -one.algorithm.task.collect(crosses, cohort.clients, weights)["weights"]
                rows[name] = judged(estimate, system.hypergradient, one.algorithm.task.wrong)
                # Without the model that the local steps send.
                rows[name]["sent by a client, in models"] = cost.scalars_up / 10 / len(system.b) - 1
                print(round, name, rows[name], flush=True)
        results[f"after {round} rounds"] = rows
    write_results("hypergradients", conditions() | {"results": results})


if __name__ == "__main__":
    main()
