"""Several workers in one process, an experiment for them, and comparisons of their runs."""

from functools import cached_property

import torch

from hedgerow.algorithms.core.pytree import flatten
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.runtime.assignment import hosts_of, owner_of
from hedgerow.platform.runtime.executor import Executor
from hedgerow.platform.runtime.launch import worker_arguments
from hedgerow.platform.runtime.worker import Worker


class SeveralWorkers(Executor):
    """Workers in this process, as the executor on Ray has them in several.

    kinds: of each share and of each worker; None: all are of one kind.
    """

    def __init__(self, experiments, data, shares: int, workers: int, kinds=None):
        arguments = worker_arguments(experiments, *data)
        self.lent, self.kinds = 0, kinds or (["cpu"] * shares, ["cpu"] * workers)
        self.workers = [self._worker(arguments, rank, self.hosts) for rank in range(workers)]
        super().__init__(experiments, None, shares)
        self.shares = list(self.kinds[0])

    @cached_property
    def hosts(self):
        return hosts_of(*self.kinds)

    @staticmethod
    def _worker(arguments, rank: int, hosts) -> Worker:
        return Worker(*arguments, name=f"states-{rank}", owns=lambda ids: hosts[owner_of(ids, len(hosts))] == rank)

    @property
    def num_workers(self) -> int:
        return len(self.workers)

    def _send(self, method, arguments, broadcasts=None, again=False):
        shared = {} if broadcasts is None else {"broadcasts": broadcasts}
        return [getattr(self.workers[w], method)(*mine, **shared) for w, mine in arguments.items()]

    def _call(self, worker, method, *arguments):
        self.lent += method == "lend"
        return getattr(self.workers[worker], method)(*arguments)


def experiment(algorithm: dict, **settings):
    return parse_experiment(
        {
            "name": "moving",
            "rounds": 7,
            "clients_per_round": 9,
            "task": {
                "data": {"name": "digits"},
                "partition": {"kind": "dirichlet", "clients": 24, "alpha": 0.3, "samples_per_client": 20}
                | {"unbalanced": 0.5, "holdout": 0.2},
                "model": {"name": "mlp", "hidden": [8]},
            },
            "algorithm": {"lr": 0.1, "batch_size": 8, "epochs": 1, **algorithm},
            "engine": {"mode": "vmap", "chunk": 2},
            "evaluation": {"every": 3, "clients": 24},
            "resources": {"executor": "inline"},
            "tracking": {"enabled": False},
            **settings,
        }
    )


def histories(coordinator) -> list[dict]:
    return [{k: v for k, v in r.items() if k not in ("seconds", "clock")} for r in coordinator.servers[0].history]


def same_state(one: dict, two: dict) -> bool:
    one, two = flatten(one), flatten(two)
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)
