"""Lost workers: actions are tried again, rounds are replayed, and clients that crash their process are left out.

Each function is handed what it is to do again, and how to get back to a state in which that is possible.
"""

from collections import Counter
from collections.abc import Callable

from hedgerow.platform.runtime.shards import ClientCrashed, WorkerLost

PATIENCE = 5
"""How often in a row workers may be lost before the run gives up."""

SUSPICIOUS = 2
"""How often in a row in the same round, until it is found out whether a client is the cause."""

CRASHES = 2
"""How often the worker of a client dies, while it works on that one alone, until the client is quarantined."""

Action = Callable[[], None]


def attempt(action: Action, recover: Action, times: int) -> bool:
    """Try an action up to so many times; returns whether one attempt ended without the loss of a worker."""
    for _ in range(times):
        try:
            action()
            return True
        except WorkerLost:
            recover()
    return False


def persist(what: str, action: Action, recover: Action) -> None:
    """Try an action until no worker is lost. Raises RuntimeError, which says what failed, after `PATIENCE` attempts."""
    if not attempt(action, recover, PATIENCE):
        raise RuntimeError(f"{what}: client actors died {PATIENCE} times in a row")


def find_crashing_clients(
    run_one_by_one: Action, recover: Action, replay: Action, quarantine: Callable[[int, int], None]
) -> None:
    """Run a round with one client after the other until no worker dies; clients that crash theirs are left out.

    recover: after a loss that no client caused. replay: back to before the round. quarantine: leave out a client of a
    variant, (variant, client). Raises RuntimeError when a client that was left out still crashes its process.
    """
    crashes: Counter[tuple[int, int]] = Counter()
    while True:
        try:
            persist("a round with one client after the other", run_one_by_one, recover)
            break
        except ClientCrashed as error:
            replay()
            crashes[error.variant, error.client] += 1
            if crashes[error.variant, error.client] > CRASHES:
                raise RuntimeError(f"client {error.client} was left out, and still kills its process") from error
            if crashes[error.variant, error.client] == CRASHES:
                quarantine(error.variant, error.client)
    replay()
