"""Small runs with wrong labels."""

from helpers import SingleRun, blobs, experiment, slots_of

from hedgerow.platform.config import registries
from hedgerow.platform.config.experiment import EngineConfig, TaskConfig
from hedgerow.platform.config.slots_section import SLOT_SECTIONS
from hedgerow.platform.runtime.factory import build_algorithms
from hedgerow.platform.runtime.server import FederatedServer
from hedgerow.platform.runtime.worker import Worker

DATA = blobs(samples=200)
ESTIMATORS = {
    "topk": {"name": "comm_fedbio_topk", "compression": 5, "u_steps": 3},
    "random_k": {"name": "comm_fedbio_topk", "compression": 5, "u_steps": 3, "compressor": "random_k"},
    "two_round": {"name": "comm_fedbio_sketch", "rows": 3, "compression": 2, "recovered": 4, "u_steps": 3},
    "server": {
        **{"name": "comm_fedbio_sketch", "rows": 3, "compression": 2, "recovered": 2, "u_steps": 3},
        "recovery": "server",
    },
    "non_iter": {"name": "comm_fedbio_non_iter", "compression": 2},
    "one_round": {"name": "comm_fedbio_non_iter", "compression": 2, "one_round": True},
}
EVERYTHING = {"name": "comm_fedbio_topk", "compressor": "random_k", "compression": 1}
SOLVERS = {name: {**section, "u_lr": 0.3} for name, section in ESTIMATORS.items() if "u_steps" in section}
ALL = ESTIMATORS | SOLVERS
BASELINES = {
    name: {"name": name, "epochs": None, "steps": 3, "batch_size": 16}
    for name in ("fedavg_oracle", "focus", "preprocess")
}


def noisy(
    section,
    mode=("vmap", 3),
    rounds=3,
    folder=None,
    data=DATA,
    kind=None,
    noise=0.4,
    model=None,
    problem=None,
    **settings,
):
    """A run on four clients with wrong labels; the server validates on a fifth of their samples, with right labels."""
    config = kind or registries.partitions.section("iid")(
        clients=4, sizes={"kind": "lognormal", "sigma": 0.3}, upper_level_fraction=0.2, label_noise=noise
    )
    clients = config.draw(data.y_train, data.classes, None, 0)
    section = {"lr": 0.2, **({"steps": 3, "batch_size": 16} if "comm" in section["name"] else {}), **section}
    own = {key: value for key, value in section.items() if key not in SLOT_SECTIONS}
    hyper = registries.algorithms.section(section["name"])(**own)
    task = {"data": {"name": "digits"}, "partition": config, "model": model or {"name": "mlp", "hidden": [4]}}
    task |= {"problem": problem or {"kind": "cleaning", "weights": "clipped"}}
    engine = EngineConfig(mode=mode[0], chunk=mode[1])
    values = {"rounds": rounds, "engine": engine, "task": TaskConfig(**task)} | dict(slots_of(section)) | settings
    spec = experiment(hyper, **values)
    one, two = build_algorithms([spec], data, clients), build_algorithms([spec], data, clients)
    worker = Worker(one, data, clients, 0, spec.resources)
    return SingleRun([FederatedServer(spec, two[0], clients, len(data.y_test))], worker, [folder])
