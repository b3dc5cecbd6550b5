"""Clients as an application of Flower has them, without a line for Hedgerow."""

import random

import numpy as np
import torch
from helpers import blobs, partition, small_task
from torch import nn

DATA = blobs()
SIZES = np.array([3, 60, 17, 1, 40, 59])
CLIENTS = partition(SIZES, seed=1)


class ClientApp:
    """Stands for the class of Flower, whose functions take and return messages."""

    def __call__(self, message, context):
        raise NotImplementedError


app = ClientApp()


class DescentClient:
    """A client that takes full-batch steps on its own samples."""

    def __init__(self, rows, lr: float):
        self.x, self.y = torch.from_numpy(DATA.x_train[rows]), torch.from_numpy(DATA.y_train[rows])
        self.module, self.lr = small_task(DATA).module, lr

    def get_parameters(self, config):
        return [value.cpu().numpy() for value in self.module.state_dict().values()]

    def set_parameters(self, parameters):
        names = self.module.state_dict().keys()
        self.module.load_state_dict(
            {name: torch.tensor(value) for name, value in zip(names, parameters, strict=True)}, strict=True
        )

    def fit(self, parameters, config):
        self.set_parameters(parameters)
        optimizer = torch.optim.SGD(self.module.parameters(), lr=self.lr)
        for _ in range(config.get("steps", 2)):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.module(self.x), self.y)
            loss.backward()
            optimizer.step()
        return self.get_parameters({}), len(self.x), {"loss": loss.item(), "device": "cpu"}

    def evaluate(self, parameters, config):
        self.set_parameters(parameters)
        with torch.no_grad():
            logits = self.module(self.x)
        accuracy = float((logits.argmax(1) == self.y).float().mean())
        return float(nn.functional.cross_entropy(logits, self.y)), len(self.x), {"accuracy": accuracy}

    def to_client(self):
        return Wrapper(self)


class Wrapper:
    """What `NumPyClient.to_client` returns."""

    def __init__(self, numpy_client):
        self.numpy_client = numpy_client


def client_fn(context):
    number = context.node_config["partition-id"]
    assert context.node_config["num-partitions"] == len(SIZES)
    rows = CLIENTS.order[CLIENTS.offsets[number] : CLIENTS.offsets[number + 1]]
    return DescentClient(rows, context.run_config.get("lr", 0.3)).to_client()


def old_client_fn(cid):
    rows = CLIENTS.order[CLIENTS.offsets[int(cid)] : CLIENTS.offsets[int(cid) + 1]]
    return DescentClient(rows, 0.3)


class Random(DescentClient):
    """Adds noise from all global generators."""

    def fit(self, parameters, config):
        noise = float(torch.randn(())) + np.random.normal() + random.gauss(0, 1)
        return [value + np.float32(1e-3 * noise * config["server_round"]) for value in parameters], 1, {}


def random_client_fn(cid):
    return Random([0], 0.0)


def truncated_client_fn(cid):
    client = old_client_fn(cid)
    client.fit = lambda parameters, config: (parameters[:-1], 1, {})
    return client


class Answering:
    """A client that returns the parameters that it receives, and other answers."""

    def __init__(self, *others, scored=1):
        self.others, self.scored = others, scored

    def fit(self, parameters, config):
        return parameters, *self.others

    def evaluate(self, parameters, config):
        return 0.5, self.scored, {}


def echo_client_fn(cid):
    return Answering(1, {})


def bare_client_fn(cid):
    return object()


def pair_client_fn(cid):
    return Answering(1)


def negative_client_fn(cid):
    return Answering(-1, {})


def weightless_client_fn(cid):
    return Answering(0, {})


def mute_client_fn(cid):
    return Answering(1, None)


def uneven_client_fn(cid):
    return Answering(1, {"loss": 1.0} if cid == "1" else {})


def unscored_client_fn(cid):
    return Answering(1, {}, scored=0)


def failing_client_fn(context):
    return Answering(context.run_config["missing"], {})


class FailingLater:
    def fit(self, parameters, config):
        if config["server_round"] == 3:
            raise RuntimeError("no memory")
        return parameters, 1, {}


def later_failing_client_fn(context):
    return FailingLater()


class NormedNet(nn.Sequential):
    """Batch norm between two layers, on images of 8 x 8."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 10))


class NormedClient(DescentClient):
    """A client with running statistics, which takes a number of steps of its own."""

    def __init__(self, number: int):
        rng = np.random.default_rng(number)
        samples = 5 + 10 * number
        self.x = torch.from_numpy(rng.random((samples, 1, 8, 8), np.float32))
        self.y = torch.from_numpy(rng.integers(0, 10, samples))
        self.module, self.lr, self.steps = NormedNet(), 0.3, number + 1

    def fit(self, parameters, config):
        self.module.train()
        return super().fit(parameters, {"steps": self.steps})

    def evaluate(self, parameters, config):
        self.module.eval()
        return super().evaluate(parameters, config)


def normed_client_fn(cid):
    return NormedClient(int(cid))
