"""Algorithms that exercise the platform: states, several exchanges, stacks, groups, divergence."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import psutil
import torch
from torch import nn

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import BatchSpec
from hedgerow.algorithms.core.hyperparameters import HyperParameters
from hedgerow.algorithms.core.measures import metric
from hedgerow.algorithms.core.messages import Exchange
from hedgerow.algorithms.core.parts import Part
from hedgerow.algorithms.core.pytree import scale, sub, tree_map, zeros_like
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.optim.local_sgd import minimize


@metric("max", "classes")
def percent(outputs, targets, mask):
    """An accuracy that is at least 100, whatever the model."""
    return 100 + 100 * (outputs.argmax(-1) == targets)


WHOLE = {"train": BatchSpec(size=None, shuffle=False)}


class Growing(FedAvg):
    """FedAvg whose schedule derives a whole number from a float: the passes of a round."""

    class Hyper(FedAvg.Hyper):
        name: str = "toys.Growing"
        growth: float = 0.1
        passes: int = 1

        def at(self, round):
            return super().at(round).model_copy(update={"passes": 1 + int(self.growth * round)})


class Stateful(FedAvg):
    """FedAvg with a client state: each client is pulled back by the sum of its own past displacements.

    log_file: receives a line for each client, with its number of rounds before.
    """

    class Hyper(FedAvg.Hyper):
        name: str = "toys.Stateful"
        pull: float = 0.1
        kill_file: str = ""
        slow_file: str = ""
        log_file: str = ""

    def init_client(self):
        return {"sum": zeros_like(self.task.init()), "times": torch.zeros(())}

    def train(self, hp, down, state, data):
        if hp.log_file and not data.batched:
            with Path(hp.log_file).open("a") as lines:
                lines.write(f"{int(state['times'])}\n")
        if hp.kill_file and not data.batched and state["times"] == 2:
            # The process that hosts this client dies in the middle of its third round. Several actors come
            # here at once, and only the one that removes the file dies.
            with suppress(FileNotFoundError):
                Path(hp.kill_file).unlink()
                os.kill(os.getpid(), signal.SIGKILL)

        # While the file exists, the run is slow enough for a test to disturb it. The file may hold the seconds.
        if hp.slow_file:
            with suppress(FileNotFoundError):
                time.sleep(float(Path(hp.slow_file).read_text() or 0.05))
        w, loss = minimize(self.task.loss, down["w"], data, hp, linear=scale(state["sum"], hp.pull))
        moved = tree_map(torch.add, state["sum"], sub(w, down["w"]))
        return {"w": w}, {"sum": moved, "times": state["times"] + 1}, {"loss": loss}


class Narrow(FedAvg):
    """FedAvg with a client state in bfloat16, a type that NumPy does not have: a mean of the client's models."""

    class Hyper(FedAvg.Hyper):
        name: str = "toys.Narrow"

    def init_client(self):
        return {"mean": tree_map(lambda leaf: leaf.bfloat16(), self.task.init())}

    def train(self, hp, down, state, data):
        start = tree_map(lambda w, mean: 0.9 * w + 0.1 * mean.float(), down["w"], state["mean"])
        w, loss = minimize(self.task.loss, start, data, hp)
        return {"w": w}, {"mean": tree_map(lambda leaf: leaf.bfloat16(), w)}, {"loss": loss}


class Counted(FedAvg):
    """FedAvg whose clients write down their process; one process dies at its seventh client."""

    class Hyper(FedAvg.Hyper):
        name: str = "toys.Counted"
        log_file: str = ""
        kill_file: str = ""

    def train(self, hp, down, state, data):
        if not data.batched:
            own, log = f"{os.getpid()}\n", Path(hp.log_file)
            with log.open("a") as lines:
                lines.write(own)
            if hp.kill_file and log.read_text().splitlines(keepends=True).count(own) == 7:
                with suppress(FileNotFoundError):
                    Path(hp.kill_file).unlink()
                    os.kill(os.getpid(), signal.SIGKILL)
        return super().train(hp, down, state, data)


class Uneven(FedAvg):
    """FedAvg without vmap, whose clients wait for a time per sample, which is longer in one of the client actors.

    slow_file: link to the id of the slow process, which the first actor creates. log_file: receives a line for each
    client, with the id of the process and the number of samples.
    """

    class Hyper(FedAvg.Hyper):
        no_vmap: ClassVar[str] = "clients wait"
        name: str = "toys.Uneven"
        seconds: float = 0.0005
        factor: float = 3.0
        slow_file: str = ""
        log_file: str = ""

    def train(self, hp, down, state, data):
        # Not in the driver, which tries the step out.
        if any("ClientActor" in part for part in psutil.Process().cmdline()):
            with suppress(FileExistsError):
                Path(hp.slow_file).symlink_to(str(os.getpid()))
            is_slow = Path(hp.slow_file).readlink().name == str(os.getpid())
            samples = int(data.streams["train"][1].sum())
            time.sleep(hp.seconds * samples * (hp.factor if is_slow else 1))
            with Path(hp.log_file).open("a") as lines:
                lines.write(f"{os.getpid()} {samples}\n")
        return super().train(hp, down, state, data)


class StraightThrough(torch.autograd.Function):
    """Sign with the gradient of the identity."""

    @staticmethod
    def forward(x):
        return x.sign()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, slope):
        return slope

    @staticmethod
    def vmap(info, in_dims, x):
        return x.sign(), in_dims[0]


class AtMost(torch.autograd.Function):
    """The identity, for which memory is missing when more than `most` clients are batched; it learns their number from
    vmap. kind: cuda raises the error of a GPU; cpu has torch's allocator fail.
    """

    @staticmethod
    def forward(value, most, kind):
        return value.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vmap(info, in_dims, value, most, kind):
        if info.batch_size > most:
            if kind == "cuda":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
            torch.empty(2**60, dtype=torch.uint8)
        return value.clone(), in_dims[0]


class Hungry(Stateful):
    """A step has memory for at most `most` clients at once; with `limit_file`, while that file exists."""

    class Hyper(Stateful.Hyper):
        name: str = "toys.Hungry"
        most: int = 2
        kind: str = "cuda"
        step: str = "train"
        limit_file: str = ""

    def train(self, hp, down, state, data):
        up, state, metrics, *_ = super().train(hp, down, state, data)
        return up, state, {"loss": self._limited(hp, "train", data, metrics["loss"])}

    def evaluate_client(self, hp, down, state, data):
        up, state, metrics = super().evaluate_client(hp, down, state, data)
        return up, state, {**metrics, "loss": self._limited(hp, "evaluate", data, metrics["loss"])}

    def _limited(self, hp, step, data, value):
        is_limited = data.batched and hp.step == step and (not hp.limit_file or Path(hp.limit_file).exists())
        return AtMost.apply(value, hp.most, hp.kind) if is_limited else value


class Broken(FedAvg):
    """An algorithm with a mistake that shows in round 2."""

    class Hyper(FedAvg.Hyper):
        name: str = "toys.Broken"

    def init_server(self):
        return {**super().init_server(), "rounds": torch.zeros(())}

    def round(self, server, cohort):
        if server["rounds"] == 1:
            raise ValueError("this algorithm is broken")
        return {**(yield from super().round(server, cohort)), "rounds": server["rounds"] + 1}


class Twice(FedAvg):
    """Two exchanges."""

    def round(self, server, cohort):
        yield from super().round(server, cohort)
        return (yield from super().round(server, cohort))


class WrongTwice(Twice):
    """Two exchanges, although it declares one."""

    parts: ClassVar = {"train": {"w": Part("w", "value")}}
    single_exchange = True


class TwoPhases(Algorithm):
    """In each round, clients send their sizes; then, from the state of the first exchange, twice as much."""

    class Hyper(HyperParameters):
        name: str = "two"

    def round(self, server, cohort):
        first = yield Exchange(self.note, {"w": server["w"]}, cohort.clients, batches=WHOLE, reduce="sum")
        assert first.contributed.all()
        second, none = yield [
            Exchange(self.recall, {}, cohort.clients, batches=WHOLE, reduce="sum"),
            Exchange(self.recall, {}, cohort.clients[:0], batches=WHOLE),
        ]
        assert none.up == {}
        return {"w": server["w"], "first": first.up["n"], "second": second.up["n"]}

    def note(self, hp, down, state, data):
        n = sum(b.mask.sum() if b.mask is not None else torch.tensor(float(len(b.y))) for b in data.batches())
        return {"n": n}, {"n": n}, {}

    def recall(self, hp, down, state, data):
        return {"n": 2 * state["n"]}, state, {}


class Stacker(Algorithm):
    """Every client sends back the sum of its own row of a per-client message, the common one, and its local input."""

    class Hyper(HyperParameters):
        name: str = "stack"

    def round(self, server, cohort):
        result = yield Exchange(
            self.echo,
            {"common": torch.tensor([100.0])},
            cohort.clients,
            per_client={"own": torch.from_numpy(cohort.clients.astype(np.float32))[:, None]},
            local_inputs_per_client={"twice": torch.from_numpy(2 * cohort.clients)[:, None]},
            batches=WHOLE,
            reduce="stack",
        )
        return {"w": server["w"], "stack": result.up["value"]}

    def echo(self, hp, down, state, data):
        return {"value": down["common"] + down["own"] + down["twice"]}, state, {}


class Diverging(FedAvg):
    """FedAvg whose clients with label 0 in their first mini-batch return NaN; with `everybody`, all clients."""

    class Hyper(FedAvg.Hyper):
        name: Literal["diverging"] = "diverging"  # type: ignore[assignment]
        everybody: bool = False

    def train(self, hp, down, state, data):
        up, state, metrics, *_ = super().train(hp, down, state, data)
        first = next(iter(data.batches("train")))
        labels = first.y if first.mask is None else torch.where(first.mask > 0, first.y, 99)
        bad = torch.zeros_like(first.y[0]) if hp.everybody else labels.min()
        poison = torch.where(bad == 0, torch.nan, 0.0)
        return {"w": tree_map(lambda p: p + poison, up["w"])}, state, metrics


class Poisonous(Stateful):
    """The process that trains the client `victim` dies, or hangs, whenever it takes part for the third time."""

    class Hyper(Stateful.Hyper):
        name: str = "toys.Poisonous"
        victim: int = 5
        hangs: bool = False

    def round(self, server, cohort):
        ids = {"id": torch.from_numpy(cohort.clients)}
        message = {"w": server["w"]}
        result = yield Exchange(self.train, message, cohort.clients, per_client=ids, batches=self.hyper.batches)
        return {"w": result.up["w"]}

    def train(self, hp, down, state, data):
        if not data.batched and down["id"] == hp.victim and state["times"] == 2:
            while hp.hangs:
                time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train(hp, down, state, data)


class FrozenFirst(nn.Sequential):
    """Digits to logits; the first layer, 64 to 16, is frozen: 170 of 1210 parameters are trained."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
        self[1].requires_grad_(False)


class FrozenFromNumPy(FrozenFirst):
    """The frozen layer is drawn from NumPy's generator, which the seed of a run does not control."""

    def __init__(self):
        super().__init__()
        self[1].weight.data = torch.from_numpy(np.random.default_rng().normal(size=(16, 64)).astype(np.float32))


class FrozenFromFile(FrozenFirst):
    """The frozen layer is filled with a value from a file."""

    def __init__(self, file: str):
        super().__init__()
        self[1].weight.data.fill_(float(Path(file).read_text()))


class ConstantLinear(nn.Module):
    """A linear layer with buffers instead of parameters."""

    def __init__(self, layer):
        super().__init__()
        self.register_buffer("weight", layer.weight.detach())
        self.register_buffer("bias", layer.bias.detach())

    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias)


class ConstantFirst(nn.Sequential):
    """FrozenFirst with buffers instead of frozen parameters."""

    def __init__(self):
        frozen = FrozenFirst()
        super().__init__(frozen[0], ConstantLinear(frozen[1]), frozen[2], frozen[3])


class FrozenLast(nn.Sequential):
    """The last layer is frozen."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
        self[3].requires_grad_(False)


class Doubled(nn.Sequential):
    """Digits to logits in double precision."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10).double())

    def forward(self, x):
        return super().forward(x.double())


class Frozen(nn.Sequential):
    """All layers are frozen."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
        self.requires_grad_(False)
