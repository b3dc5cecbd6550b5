"""FedDyn's synthetic classification data (thesis, appendix A.1.1)."""

from pathlib import Path

import numpy as np
from pydantic import Field

from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.sources.source import Seed, Source


class Synthetic(Source):
    """FedDyn's synthetic data (thesis, appendix A.1.1): each client has its own linear model and its own features.

    gamma1 > 0: the clients' optimal models differ (type 1). gamma2 > 0: their feature means differ (type 2). gamma3 >
    0: their sample counts differ (type 3). All 0: homogeneous. Partition it with `kind: natural`.
    """

    clients: int = Field(20, ge=1, description="number of clients")
    samples: int = Field(200, ge=1, description="training samples per client, on average")
    test_samples: int = Field(50, ge=1, description="test samples per client")
    features: int = Field(30, ge=1, description="dimension of a sample")
    classes: int = Field(5, ge=2, description="number of classes")
    gamma1: float = Field(0.0, ge=0, description="variance of the means of the clients' models")
    gamma2: float = Field(0.0, ge=0, description="variance of the means of the clients' features")
    gamma3: float = Field(0.0, ge=0, description="variance of the logarithm of the clients' sample counts")
    seed: Seed = 0

    @property
    def drawn(self) -> int:
        return (self.clients * (self.samples + self.test_samples) + self.classes) * self.features

    def load(self, root: Path) -> Dataset:
        """Client i: y = argmax(theta_i x + b_i), x ~ N(nu_i, diag(j^-1.2)).

        Entries of theta_i and b_i ~ N(mu_i, 1) with mu_i ~ N(0, gamma1); if gamma1 = 0, all clients share one theta, b
        ~ N(0, 1).
        Entries of nu_i ~ N(beta_i, 1) with beta_i ~ N(0, gamma2); if gamma2 = 0, nu_i = 0.
        """
        rng = np.random.default_rng([self.seed, 29])
        classes, features, clients = self.classes, self.features, self.clients
        deviation = np.arange(1, features + 1) ** -0.6  # the square root of j^-1.2
        shared = rng.normal(size=(classes, features)), rng.normal(size=classes)
        # A lognormal's mean is exp(m + v/2): m is chosen so that the mean is `samples`.
        logs = rng.normal(np.log(self.samples) - self.gamma3 / 2, np.sqrt(self.gamma3), clients)
        counts = np.maximum(np.round(np.exp(logs)), 1).astype(int)
        xs, ys, tests = [], [], []
        for samples in counts:
            theta, b = shared
            if self.gamma1:
                mu = rng.normal(0, np.sqrt(self.gamma1))
                theta, b = rng.normal(mu, 1, (classes, features)), rng.normal(mu, 1, classes)
            nu = rng.normal(rng.normal(0, np.sqrt(self.gamma2)), 1, features) if self.gamma2 else np.zeros(features)
            x = (nu + deviation * rng.normal(size=(samples + self.test_samples, features))).astype(np.float32)
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
