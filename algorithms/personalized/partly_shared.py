"""FedAvg on a part of the model: the other parameters, and their buffers, belong to each client."""

from functools import cached_property
from typing import Any

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import StepResult
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import Params
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.optim.local_sgd import minimize


class PartlyShared(FedAvg):
    """Base class of algorithms whose clients share some parameters of the model, and keep the others to themselves.

    The server has the shared parameters. The personal ones are client state, which is never transmitted, and start
    from the initial model. Each client is scored with both.
    """

    is_personal = True

    def is_shared(self, name: str) -> bool:
        """Whether a parameter, or a buffer that training changes, is shared."""
        raise NotImplementedError

    def keeps_buffer(self, name: str) -> bool:
        return not self.is_shared(name)

    @cached_property
    def names(self) -> dict[str, bool]:
        """Names of all parameters, in the order of the model -> whether the parameter is shared."""
        return {name: self.is_shared(name) for name in self.task.init()}

    def shared_part(self, w: Params) -> Params:
        return {name: w[name] for name, is_shared in self.names.items() if is_shared}

    def own_part(self, w: Params) -> Params:
        return {name: w[name] for name, is_shared in self.names.items() if not is_shared}

    def joined(self, shared: Params, own: Params) -> Params:
        """The whole model, in its own order of the parameters."""
        return {name: shared[name] if is_shared else own[name] for name, is_shared in self.names.items()}

    def init_server(self) -> Tree:
        return {"w": self.shared_part(self.task.init())}

    def init_client(self) -> Tree:
        own = self.own_part(self.task.init())
        return {"own": own} if own else {}

    def client_model(self, down: Tree, state: Tree) -> Params:
        return self.joined(down["w"], state.get("own", {}))

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> StepResult:
        w, metrics = self.fit(hp, self.client_model(down, state), data)
        own = self.own_part(w)
        return StepResult({"w": self.shared_part(w)}, {"own": own} if own else {}, metrics, w)

    def fit(self, hp: Any, start: Params, data: ClientData) -> tuple[Params, dict[str, Any]]:
        """Trains a client's model; returns it and the metrics of the training."""
        w, loss = minimize(self.task.loss, start, data, hp)
        return w, {"loss": loss}

    def scored(self, server: Tree) -> Tree:
        return {"w": server["w"]}

    def evaluate_params(self, server: Tree) -> Tree:
        """Returns the shared parameters, and the initial values of the personal ones."""
        return {**self.task.init(), **server["w"]}

    def personal_model(self, w: Tree, state: Tree) -> Tree:
        return self.client_model({"w": w}, state)

    def evaluate_client(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Scores the client's model: the shared parameters and its own."""
        return super().evaluate_client(hp, {**down, "w": self.client_model(down, state)}, state, data)

    def incompatibility(self) -> str | None:
        if not any(self.names.values()):
            return f"algorithm.name: {self.hyper.name} shares no parameter of this model; choose another model"
        return Algorithm.incompatibility(self)
