"""FedDyn's synthetic classification data (thesis, appendix A.1.1)."""

from typing import TYPE_CHECKING

import numpy as np

from hedgerow.platform.data.dataset import Dataset

if TYPE_CHECKING:
    from hedgerow.platform.data.sources.source import Synthetic


def generate(config: "Synthetic") -> Dataset:
    """Client i: y = argmax(theta_i x + b_i), x ~ N(nu_i, diag(j^-1.2)).

    Entries of theta_i and b_i ~ N(mu_i, 1) with mu_i ~ N(0, gamma1); without gamma1 one theta, b ~ N(0, 1) is shared.
    Entries of nu_i ~ N(beta_i, 1) with beta_i ~ N(0, gamma2); without gamma2 nu_i = 0.
    """
    rng = np.random.default_rng([config.seed, 29])
    classes, features, clients = config.classes, config.features, config.clients
    deviation = np.arange(1, features + 1) ** -0.6  # the square root of j^-1.2
    shared = rng.normal(size=(classes, features)), rng.normal(size=classes)
    # A lognormal's mean is exp(m + v/2): m is chosen so that the mean is `samples`.
    logs = rng.normal(np.log(config.samples) - config.gamma3 / 2, np.sqrt(config.gamma3), clients)
    counts = np.maximum(np.round(np.exp(logs)), 1).astype(int)
    xs, ys, tests = [], [], []
    for samples in counts:
        theta, b = shared
        if config.gamma1:
            mu = rng.normal(0, np.sqrt(config.gamma1))
            theta, b = rng.normal(mu, 1, (classes, features)), rng.normal(mu, 1, classes)
        nu = rng.normal(rng.normal(0, np.sqrt(config.gamma2)), 1, features) if config.gamma2 else np.zeros(features)
        x = (nu + deviation * rng.normal(size=(samples + config.test_samples, features))).astype(np.float32)
        y = np.argmax(x @ theta.T + b, axis=1).astype(np.int64)
        xs.append(x[:samples])
        ys.append(y[:samples])
        tests.append((x[samples:], y[samples:]))
    return Dataset(
        name="synthetic",
        x_train=np.concatenate(xs),
        y_train=np.concatenate(ys),
        x_test=np.concatenate([x for x, _ in tests]),
        y_test=np.concatenate([y for _, y in tests]),
        classes=classes,
        mean=np.zeros(features, np.float32),
        std=np.ones(features, np.float32),
        class_names=tuple(str(label) for label in range(classes)),
        train_clients=np.repeat(np.arange(clients), counts),
    )
