"""Small settings of each family of methods."""

from hedgerow.platform.config.registries import algorithm_class

RATES = {"lr": 0.2, "u_lr": 0.1, "upper_lr_factor": 5.0, "ridge": 0.05}


def section(name, **change):
    own = {"neumann_terms": 2} if "neumann_terms" in algorithm_class(name).Hyper.model_fields else {}
    return {"name": name, "steps": 3, "batch_size": 8, **RATES, **own, **change}


def stream(algorithm: dict, **settings) -> dict:
    return {
        "name": "stream",
        "rounds": 5,
        "task": {
            "data": {"name": "digits"},
            "partition": {"kind": "stream", "tasks": 6, "ways": 4, "train": 26, "test": 20},
            "model": {"name": "mlp", "hidden": [12]},
        },
        "algorithm": algorithm,
        "evaluation": {"every": 2},
        "engine": {"mode": "vmap", "chunk": 2},
        "resources": {"executor": "inline"},
        "checkpoints": {"every": 2},
        "tracking": {"enabled": False},
        **settings,
    }


def settings_of(name: str, **more) -> dict:
    return {"name": name, "adapt_steps": 2, **({} if name == "fs" else {"steps": 4, "batch_size": 6}), **more}


DEALT = {"clients": 12, "labels_per_client": 3, "train": 20, "test": 10}
EVERYTHING = {
    "speed": {"kind": "lognormal", "sigma": 0.5},
    "jitter": 0.2,
    "availability": {"kind": "diurnal", "probability": 0.6, "amplitude": 0.5, "period": 4.0},
    "dropout": 0.2,
    "deadline": 6.0,
    "over_selection": 2.0,
    "bandwidth": 1000.0,
}
INLINE = {"resources__executor": "inline"}
POISON = {
    "rounds": 6,
    "clients_per_round": "all",
    "algorithm__name": "toys.Poisonous",
    "algorithm__victim": 5,
    "engine__mode": "loop",
    "engine__chunk": "auto",
}
