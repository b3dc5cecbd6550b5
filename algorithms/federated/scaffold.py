"""SCAFFOLD (Karimireddy et al., 2020) with the control variates of option II, which the thesis compares with."""

from typing import Any

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges, StepResult
from hedgerow.algorithms.core.pytree import Tree, add, scale, sub, zeros_like
from hedgerow.algorithms.optim.local_sgd import LocalSGD, minimize, plain_steps


class Scaffold(Algorithm):
    """Corrects local steps by the difference between the server's and the client's control variates, c - c_k
    [Karimireddy2020].

    Control variates are transmitted with the model, in both directions, so a round costs twice as much as one of
    FedAvg. c_k is the mean of the gradients of a client's steps; with local momentum, which the paper does not have, it
    is a weighted mean.
    """

    accumulates = True

    class Hyper(LocalSGD):
        """Hyperparameters of the local solver."""

        assumes_sgd = "control variates are means of the gradients of SGD steps"

    def init_server(self) -> Tree:
        w = self.task.init()
        return {"w": w, "c": zeros_like(w)}

    def init_client(self) -> Tree:
        return {"c": zeros_like(self.task.init())}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        result = yield Exchange(
            self.train, {"w": server["w"], "c": server["c"]}, cohort.clients, batches=self.hyper.batches
        )
        share = result.clients / cohort.population
        return {"w": result.up["w"], "c": add(server["c"], result.up["change"], share)}

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> StepResult:
        w, loss = minimize(self.task.loss, down["w"], data, hp, linear=sub(down["c"], state["c"]))
        # c_k+ - c_k = (w_server - w) / (K lr) - c, where this client takes K steps. Momentum moves the model farther
        # than K plain steps: without the correction c_k would be about 1 / (1 - momentum) times the gradient.
        steps = plain_steps(hp, data.steps("train"))
        change = add(scale(down["c"], -1), sub(down["w"], w), 1 / (steps * hp.lr))
        up = {"w": w, "change": change}
        return StepResult(up, self.remember(hp, down, up, state), {"loss": loss}, w)

    def remember(self, hp: Any, down: Tree, sent: Tree, state: Tree) -> Tree:
        return {"c": add(state["c"], sent["change"])}
