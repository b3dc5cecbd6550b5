"""Algorithms that violate their contract, each in one way, and models that cannot be batched."""

from typing import ClassVar

import numpy as np
import torch

from hedgerow.algorithms.aggregators.aggregator import Aggregator
from hedgerow.algorithms.core.client_data import BatchSpec
from hedgerow.algorithms.core.hyperparameters import Settings
from hedgerow.algorithms.core.messages import Exchange
from hedgerow.algorithms.core.parts import Part
from hedgerow.algorithms.core.pytree import tree_map
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.objectives.objective import Objective
from hedgerow.algorithms.optim.local_sgd import minimize
from hedgerow.algorithms.transforms.sketching import Sketch
from hedgerow.algorithms.transforms.transform import Transform


class Plain(FedAvg):
    """FedAvg in its shortest form, which keeps the contract."""

    def init_server(self):
        return {"w": self.task.init()}

    def round(self, server, cohort):
        result = yield Exchange(self.train, {"w": server["w"]}, cohort.clients, batches=self.hyper.batches)
        return {"w": result.up["w"]}

    def train(self, hp, down, state, data):
        w, loss = minimize(self.task.loss, down["w"], data, hp)
        return {"w": w}, state, {"loss": loss}


class ReadsItself(Plain):
    def train(self, hp, down, state, data):
        return super().train(self.hyper, down, state, data)


class Penalty(Settings):
    weight: float = 0.5


class ReadsItsSection(Plain):
    class Hyper(Plain.Hyper):
        penalty: Penalty = Penalty()

    def round(self, server, cohort):
        assert self.hyper.penalty.weight == 0.5
        return (yield from super().round(server, cohort))

    def train(self, hp, down, state, data):
        update, state, metrics = super().train(hp, down, state, data)
        return update, state, metrics | {"loss": metrics["loss"] + self.hyper.penalty.weight}


class Draws(Plain):
    no_vmap = "it draws without a key"

    def train(self, hp, down, state, data):
        update, state, metrics = super().train(hp, down, state, data)
        return {"w": {name: p + 0.01 * torch.randn_like(p) for name, p in update["w"].items()}}, state, metrics


class DrawsByKey(Draws):
    def round(self, server, cohort):
        batches = self.hyper.batches
        result = yield Exchange(self.train, {"w": server["w"]}, cohort.clients, batches=batches, keyed=True)
        return {"w": result.up["w"]}


class DrawsElsewhere(Plain):
    def train(self, hp, down, state, data):
        np.random.random()
        return super().train(hp, down, state, data)


class NoReturn(Plain):
    def round(self, server, cohort):
        result = yield Exchange(self.train, {"w": server["w"]}, cohort.clients, batches=self.hyper.batches)
        server = {"w": result.up["w"]}


class NoGenerator(Plain):
    def round(self, server, cohort):
        return server


class YieldsTuple(Plain):
    def round(self, server, cohort):
        yield self.train, {"w": server["w"]}
        return server


class Function(Plain):
    def round(self, server, cohort):
        yield Exchange(lambda hp, down, state, data: ({}, state, {}), {"w": server["w"]}, cohort.clients)
        return server


class ReturnsTensor(Plain):
    def round(self, server, cohort):
        result = yield from super().round(server, cohort)
        return result["w"]["1.weight"]


class NoModel(Plain):
    def round(self, server, cohort):
        result = yield from super().round(server, cohort)
        return {"model": result["w"]}


class Stacked(Plain):
    def round(self, server, cohort):
        result = yield Exchange(
            self.train, {"w": server["w"]}, cohort.clients, batches=self.hyper.batches, reduce="stack"
        )
        return {"w": result.up["w"]}


class OtherType(Plain):
    def init_server(self):
        return {"w": self.task.init(), "rounds": torch.tensor(0)}

    def round(self, server, cohort):
        after = yield from super().round(server, cohort)
        return {**after, "rounds": server["rounds"] + 0.5}


class SendsHalf(Plain):
    def round(self, server, cohort):
        half = {"w": {name: p.bfloat16() for name, p in server["w"].items()}}
        result = yield Exchange(self.train, half, cohort.clients, batches=self.hyper.batches)
        return {"w": result.up["w"]}


class SameMemory(Plain):
    def train(self, hp, down, state, data):
        up, state, metrics, *_ = super().train(hp, down, state, data)
        self.own = getattr(self, "own", None) or {name: p.clone() for name, p in up["w"].items()}
        for name, p in up["w"].items():
            self.own[name].copy_(p)
        return {"w": self.own}, state, metrics


class Needy(Plain):
    needs = frozenset({"validaton"})


class TwoValues(Plain):
    def train(self, hp, down, state, data):
        up, _, metrics, *_ = super().train(hp, down, state, data)
        return up, metrics


class StepWithoutReturn(Plain):
    def train(self, hp, down, state, data):
        super().train(hp, down, state, data)


class BareTensor(Plain):
    def train(self, hp, down, state, data):
        up, state, metrics, *_ = super().train(hp, down, state, data)
        return up["w"]["1.weight"], state, metrics


class FloatMetric(Plain):
    def train(self, hp, down, state, data):
        up, state, _, *_ = super().train(hp, down, state, data)
        return up, state, {"loss": 0.5}


class LongMetric(Plain):
    def train(self, hp, down, state, data):
        up, state, _, *_ = super().train(hp, down, state, data)
        return up, state, {"loss": torch.zeros(3)}


class Forgetful(Plain):
    def init_client(self):
        return {"c": self.task.init(), "times": torch.zeros(())}

    def train(self, hp, down, state, data):
        up, state, metrics, *_ = super().train(hp, down, state, data)
        return up, {"times": state["times"] + 1}, metrics


class UnnamedStream(Plain):
    def train(self, hp, down, state, data):
        up, state, metrics, *_ = super().train(hp, down, state, data)
        return up, state, {"seen": sum(batch.x.sum() for batch in data.batches("valid")), **metrics}


class Item(Plain):
    def train(self, hp, down, state, data):
        up, state, metrics, *_ = super().train(hp, down, state, data)
        if metrics["loss"].item() > 100:
            up = down
        return up, state, metrics


class Branches(Plain):
    def train(self, hp, down, state, data):
        up, state, metrics, *_ = super().train(hp, down, state, data)
        return (up if metrics["loss"] < 100 else {"w": down["w"]}), state, metrics


class WrongEvaluation(Plain):
    def evaluate(self, server, cohort):
        yield Exchange(self.evaluate_client, {"w": server["w"]}, cohort.clients, batches={"test": BatchSpec(10)})


class Diverges(Plain):
    """Not a mistake: its clients send NaN."""

    def train(self, hp, down, state, data):
        up, state, metrics, *_ = super().train(hp, down, state, data)
        return {"w": {name: p * torch.nan for name, p in up["w"].items()}}, state, metrics


class Raises(Plain):
    """A mistake that only a run reveals."""

    def train(self, hp, down, state, data):
        raise ValueError("a mistake of another kind")


# ---- inside slots ----------------------------------------------------------------------------------------------------


class UnknownEntry(FedAvg):
    parts: ClassVar = {"train": {"w": Part("model", "value")}}


class UnknownStep(FedAvg):
    parts: ClassVar = {"fit": {"w": Part("w", "value")}}


class UnknownModel(FedAvg):
    optimizes = "model"


class Forgets(FedAvg):
    parts: ClassVar = {"train": {"w": Part("w", "value"), "more": Part("w", "difference")}}


class Talkative(FedAvg):
    def train(self, hp, down, state, data):
        up, state, metrics, *_ = super().train(hp, down, state, data)
        return {**up, "more": torch.zeros(())}, state, metrics


class Undeclared(Talkative):
    parts: ClassVar = {"train": {"w": Part("w", "value")}}


class OtherShape(Talkative):
    parts: ClassVar = {"train": {"w": Part("w", "value"), "more": Part("w", "difference")}}


class Silent(FedAvg):
    parts: ClassVar = {"train": {"w": Part("w", "value")}}

    def round(self, server, cohort):
        found = yield Exchange(self.train, {"start": server["w"]}, cohort.clients, batches=self.hyper.batches)
        return found.up

    def train(self, hp, down, state, data):
        return super().train(hp, {"w": down["start"]}, state, data)


class Sums(FedAvg):
    parts: ClassVar = {"train": {"w": Part("w", "value")}}

    def round(self, server, cohort):
        message, weights = {"w": server["w"]}, cohort.sizes / cohort.sizes.sum()
        batches = self.hyper.batches
        found = yield Exchange(self.train, message, cohort.clients, batches=batches, reduce="sum", weights=weights)
        return found.up


class ReportsNoModel(FedAvg):
    training_steps = ("train",)

    def train(self, hp, down, state, data):
        up, state, metrics, *_ = super().train(hp, down, state, data)
        return up, state, {"loss": metrics["loss"]}


class JointSketch(Sketch):
    joint = True


class ChangesMessage(Plain):
    def train(self, hp, down, state, data):
        update, state, metrics = super().train(hp, down, state, data)
        for name, p in down["w"].items():
            p.copy_(update["w"][name])
        return update, state, metrics


class ChangesServer(Plain):
    def init_server(self):
        return {"w": self.task.init(), "rounds": torch.zeros(())}

    def round(self, server, cohort):
        server["rounds"] += 1
        after = yield from super().round(server, cohort)
        return {**server, **after}


class CountsItself(Plain):
    rounds = 0

    def round(self, server, cohort):
        self.rounds += 1
        return (yield from super().round(server, cohort))


class OwnGenerator(Plain):
    def __init__(self, hyper, task):
        super().__init__(hyper, task)
        self.rng = np.random.default_rng(0)

    def round(self, server, cohort):
        w = {name: p + 0.01 * float(self.rng.normal()) for name, p in server["w"].items()}
        return (yield from super().round({"w": w}, cohort))


class LateState(Plain):
    def train(self, hp, down, state, data):
        update, _, metrics = super().train(hp, down, state, data)
        return update, {"n": state.get("n", torch.zeros(())) + 1}, metrics


class DrawsAtServer(Plain):
    def round(self, server, cohort):
        after = yield from super().round(server, cohort)
        return {"w": {name: p + torch.randn(()) for name, p in after["w"].items()}}


class DrawsAtStart(Plain):
    def init_server(self):
        return {"w": {name: p + np.random.normal() for name, p in self.task.init().items()}}


class IgnoresMask(Plain):
    """Its loss counts the padding of a mini-batch, which only batched clients have."""

    def train(self, hp, down, state, data):
        w = down["w"]
        for batch in data.batches():
            gradient = torch.func.grad(lambda w, batch=batch: self.cross_entropy(w, batch))(w)
            w = {name: p - hp.lr * gradient[name] for name, p in w.items()}
        return {"w": w}, state, {}

    def cross_entropy(self, w, batch):
        return torch.nn.functional.cross_entropy(self.task.logits(w, batch.x), batch.y)


class SignSGD(Plain):
    """It keeps its contract; rounding decides the sign of a gradient that is 0: that of a shift of all logits."""

    def init_server(self):
        return {"w": self.task.init(), "shift": torch.zeros(())}

    def round(self, server, cohort):
        result = yield Exchange(self.train, server, cohort.clients, batches=self.hyper.batches)
        return dict(result.up)

    def train(self, hp, down, state, data):
        for batch in data.batches():
            slope = torch.func.grad(self.shifted)(down, batch)
            down = tree_map(lambda p, g, batch=batch: p - hp.lr * batch.active * g.sign(), down, slope)
        return down, state, {}

    def shifted(self, tree, batch):
        return self.task.criterion(self.task.logits(tree["w"], batch.x) + tree["shift"], batch)


class MasksAlone(Plain):
    """It reads the mask of every mini-batch, which those of a loop do not have."""

    def train(self, hp, down, state, data):
        w = down["w"]
        for batch in data.batches():
            gradient = torch.func.grad(self.cross_entropy)(w, batch)
            w = {name: p - hp.lr * batch.active * gradient[name] for name, p in w.items()}
        return {"w": w}, state, {}

    def cross_entropy(self, w, batch):
        each = torch.nn.functional.cross_entropy(self.task.logits(w, batch.x), batch.y, reduction="none")
        return (each * batch.mask).sum() / batch.mask.sum()


class IgnoresActive(Plain):
    """It decays the model in steps that a client of a batch does not have."""

    def train(self, hp, down, state, data):
        w = down["w"]
        for batch in data.batches():
            gradient = torch.func.grad(self.task.loss)(w, batch)
            w = {name: 0.9 * p - hp.lr * gradient[name] for name, p in w.items()}
        return {"w": w}, state, {}


class _Sends(Plain):
    """Sends another exchange."""

    def changes(self, server, cohort):
        raise NotImplementedError

    def round(self, server, cohort):
        usual = {"broadcast": {"w": server["w"]}, "clients": cohort.clients, "batches": self.hyper.batches}
        result = yield Exchange(self.train, **{**usual, **self.changes(server, cohort)})
        return {"w": result.up["w"]}


class LongWeights(_Sends):
    def changes(self, server, cohort):
        return {"clients": cohort.clients[1:], "weights": self.weights(cohort)}


class Backwards(_Sends):
    def changes(self, server, cohort):
        return {"clients": cohort.clients[::-1]}


class Strangers(_Sends):
    def changes(self, server, cohort):
        return {"clients": np.arange(cohort.population)}


class LongRows(_Sends):
    def changes(self, server, cohort):
        return {"per_client": {"row": torch.arange(cohort.population)}}


class Median(_Sends):
    def changes(self, server, cohort):
        return {"reduce": "median"}


class SendsNumber(_Sends):
    def changes(self, server, cohort):
        return {"broadcast": {"w": server["w"], "round": cohort.round}}


class NoPasses(_Sends):
    def changes(self, server, cohort):
        return {"batches": {"train": BatchSpec(8, epochs=0)}}


class NoSamples(_Sends):
    def changes(self, server, cohort):
        return {"batches": {"train": BatchSpec(8, split="validation")}}


class LongWeightsLater(_Sends):
    class Hyper(_Sends.Hyper):
        fewer: int = 1

    def changes(self, server, cohort):
        return {"clients": cohort.clients[self.hyper.fewer * (cohort.round - 1) :], "weights": self.weights(cohort)}


class Scalars(Aggregator):
    def combine(self, updates, weights):
        return tree_map(torch.mean, updates)


class Precise(Aggregator):
    def combine(self, updates, weights):
        return tree_map(lambda leaf: torch.tensordot(weights / weights.sum(), leaf.double(), 1), updates)


class DrawingRule(Aggregator):
    def combine(self, updates, weights):
        return tree_map(lambda leaf: leaf[torch.randint(len(leaf), ())], updates)


class Remembers(Transform):
    def client(self, hp, update, state, key):
        return update, {"n": state.get("n", torch.zeros(())) + 1}


class Mean(Transform):
    def client(self, hp, update, state, key):
        return tree_map(torch.mean, update), state


class Unkeyed(Transform):
    def client(self, hp, update, state, key):
        return tree_map(lambda leaf: leaf + torch.randn(()), update), state


class PenaltyOfItself(Objective):
    weight: float = 0.1

    def begin(self, task, hp, down, state, data):
        return lambda w, batch: task.loss(w, batch) + self.weight * w["1.bias"].square().sum(), None


class ScalesByItself(Transform):
    factor: float = 0.5

    def client(self, hp, update, state, key):
        return tree_map(lambda leaf: self.factor * leaf, update), state


class LateObjective(Objective):
    def begin(self, task, hp, down, state, data):
        return task.loss, None

    def end(self, task, hp, w, state, context, data):
        return {"n": state.get("n", torch.zeros(())) + 1}, {}


class TensorMetric(Plain):
    def round_metrics(self, server):
        return {"norm": server["w"]["1.bias"].norm()}


class OwnRound(Plain):
    def round_metrics(self, server):
        return {"round": 7}


class OwnScore(Plain):
    def server_metrics(self, server):
        return {"test_accuracy": 1.0}


class CountsCorrect(Plain):
    """Reports the number of its correct predictions, which is a metric like any other."""

    def train(self, hp, down, state, data):
        update, state, metrics = super().train(hp, down, state, data)
        return update, state, {**metrics, "fully_correct": 0 * metrics["loss"] + 3}


class ScoresMore(Plain):
    more: ClassVar = {"top@5_correct", "top@5_loss"}

    def evaluate_client(self, hp, down, state, data):
        update, state, metrics = super().evaluate_client(hp, down, state, data)
        return update, state, metrics | dict.fromkeys(self.more, metrics["loss"])


class ScoresUnread(ScoresMore):
    more: ClassVar = {"calibration"}


class ScoresServer(ScoresMore):
    more: ClassVar = {"server_correct", "server_loss"}


class ScoresLoss(Plain):
    def evaluate_client(self, hp, down, state, data):
        update, state, metrics = super().evaluate_client(hp, down, state, data)
        return update, state, {"loss": metrics["loss"], "samples": metrics["samples"]}


class NamesPrecision(Plain):
    def train(self, hp, down, state, data):
        update, state, metrics = super().train(hp, down, state, data)
        return update, state, {**metrics, "precision@1": metrics["loss"]}
