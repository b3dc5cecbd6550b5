"""FedPer (Arivazhagan, Aggarwal, Singh, Choudhary, "Federated Learning with Personalization Layers", 2019)."""

from fnmatch import fnmatchcase
from functools import cached_property

from pydantic import Field

from hedgerow.algorithms.personalized.partly_shared import PartlyShared


class FedPer(PartlyShared):
    """FedAvg on the base of the model, weighted by samples; each client has its own head, and trains both together
    [Arivazhagan2019].
    """

    class Hyper(PartlyShared.Hyper):
        shared: list[str] | None = Field(
            None,
            description="patterns of names of parameters, such as features.*, that are shared; all others are "
            "personal, and never sent; null: all but those of the last layer, the head",
        )

    @cached_property
    def head(self) -> str:
        """Name of the last layer."""
        return _layer(list(self.task.init())[-1])

    def is_shared(self, name: str) -> bool:
        if self.hyper.shared is None:
            return _layer(name) != self.head
        return any(fnmatchcase(name, pattern) for pattern in self.hyper.shared)

    def incompatibility(self) -> str | None:
        patterns, several = self.hyper.shared, ", ".join(map(repr, list(self.names)[:3]))
        if patterns is None and not any(self.names.values()):
            return "algorithm.shared: the model has one layer, so that nothing is left to share; give patterns of names"
        for pattern in patterns or ():
            if not any(fnmatchcase(name, pattern) for name in self.names):
                return (
                    f"algorithm.shared: {pattern!r} matches no parameter of the model, which has {several}; correct "
                    "the pattern"
                )
        if not any(self.names.values()):
            return f"algorithm.shared: it shares no parameter of the model, which has {several}; add a pattern"
        return super().incompatibility()


def _layer(name: str) -> str:
    """Name of the layer that has a parameter."""
    return name.rpartition(".")[0]
