"""Runs of bilevel methods on Gaussian blobs."""

from families import section
from helpers import SingleRun, blobs, experiment, slots_of

from hedgerow.platform.config import registries
from hedgerow.platform.config.experiment import EngineConfig, TaskConfig
from hedgerow.platform.runtime.factory import build_algorithms
from hedgerow.platform.runtime.server import FederatedServer
from hedgerow.platform.runtime.worker import Worker

DATA = blobs(samples=160)


def on_blobs(name, kind="cleaning", mode=("vmap", 3), rounds=3, folder=None, **change) -> SingleRun:
    """A run on five clients of different sizes."""
    noise = 0.4 if kind == "cleaning" else 0.0
    config = registries.partitions.section("iid")(
        clients=5,
        sizes={"kind": "lognormal", "sigma": 0.5},
        upper_level_fraction=0.3,
        client_test_fraction=0.2,
        label_noise=noise,
    )
    clients = config.draw(DATA.y_train, DATA.classes, None, 0)
    slots = dict(slots_of(change))
    own = {key: value for key, value in change.items() if key not in slots}
    hyper = registries.algorithms.section(name)(**section(name, **own))
    task = {"data": {"name": "digits"}, "partition": config, "model": {"name": "mlp", "hidden": [6]}}
    engine = EngineConfig(mode=mode[0], chunk=mode[1])
    spec = experiment(hyper, rounds=rounds, engine=engine, task=TaskConfig(**task, problem={"kind": kind}), **slots)
    one, two = build_algorithms([spec], DATA, clients), build_algorithms([spec], DATA, clients)
    worker = Worker(one, DATA, clients, 0, spec.resources)
    return SingleRun([FederatedServer(spec, two[0], clients, len(DATA.y_test))], worker, [folder])
