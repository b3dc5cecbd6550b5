"""A transport in this process that loses calls, and an experiment for it."""

from collections.abc import Callable

from helpers import without_clock

from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.runtime.coordinator import Coordinator, build_coordinator, worker_arguments
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.runtime.transport import Answer, InProcess
from hedgerow.platform.runtime.worker import Worker


class Losing(InProcess):
    """Loses the calls for which `loses(number, worker, method, arguments)` is true, after they have been carried out.

    late: whether a lost call has been carried out before its worker is lost.
    """

    def __init__(self, build, workers: int, loses: Callable[..., bool], late: bool = True):
        super().__init__(build, workers)
        self.loses, self.late, self.calls, self.lost = loses, late, 0, 0

    def wait(self, seconds: float) -> list[Answer]:
        worker, method, arguments, _ = self._calls[0]
        self.calls += 1
        if not self.loses(self.calls, worker, method, arguments):
            return super().wait(seconds)
        self.lost += 1
        if self.late:
            super().wait(seconds)
        else:
            self._calls.popleft()
        self.built.pop(worker, None)
        return [Answer(worker, lost="as the test wants")]


def experiment(name: str, **settings):
    """Digits over 24 uneven clients, nine in a round, with held-out samples."""
    return parse_experiment(
        {
            "name": "losses",
            "rounds": 5,
            "clients_per_round": 9,
            "task": {
                "data": {"name": "digits"},
                "partition": {"kind": "dirichlet", "clients": 24, "alpha": 0.3, "samples_per_client": 20}
                | {"sizes": {"kind": "lognormal", "sigma": 0.5}, "client_test_fraction": 0.2},
                "model": {"name": "mlp", "hidden": [8]},
            },
            "algorithm": {"name": name} | ({} if "Phases" in name else {"lr": 0.1, "batch_size": 8, "epochs": 1}),
            "engine": {"mode": "vmap", "chunk": 2},
            "evaluation": {"every": 2, "clients": 24},
            "checkpoints": {"every": 2},
            "resources": {"executor": "inline"},
            "tracking": {"enabled": False},
            **settings,
        }
    )


def coordinator(
    chosen, folder, parts: int = 3, workers: int = 1, loses=lambda *call: False, kind=Losing, **how
) -> Coordinator:
    """Coordinator of an experiment whose transport loses calls; its notices are in `notices`."""
    data = check(chosen, None)
    transport = kind(lambda: Worker(*worker_arguments([chosen], *data)), workers, loses, **how)
    run = build_coordinator([chosen], *data, [folder / "checkpoints"], transport=transport, parts=parts)
    run.notices = []
    run.on_notice = run.notices.append
    return run


def outcome(run: Coordinator) -> tuple:
    """Records without the clock, and the final parameters."""
    run.advance(1e6)
    records = without_clock(run.servers[0].history)
    return records, {name: value.tobytes() for name, value in run.parameters().items()}
