"""Recovery from lost workers: retry actions, replay rounds, and exclude clients that crash their process.

Each function receives the action to repeat, and an action that restores a state in which this is possible.
"""

from collections import Counter
from collections.abc import Callable

from hedgerow.platform.runtime.shards import ClientCrashed, WorkerLost

PATIENCE = 5
"""Number of consecutive worker losses after which the run gives up."""

SUSPICIOUS = 2
"""Number of consecutive losses in the same round after which clients are run one by one, to find the cause."""

CRASHES = 2
"""Number of times that a worker may die while it runs only this client, until the client is quarantined."""

Action = Callable[[], None]


def attempt(action: Action, recover: Action, times: int) -> bool:
    """Try an action up to `times` times; returns whether one attempt ended without the loss of a worker."""
    for _ in range(times):
        try:
            action()
            return True
        except WorkerLost:
            recover()
    return False


def persist(what: str, action: Action, recover: Action) -> None:
    """Try an action until no worker is lost. Raises RuntimeError, with `what` failed, after `PATIENCE` attempts."""
    if not attempt(action, recover, PATIENCE):
        raise RuntimeError(f"{what}: client actors died {PATIENCE} times in a row")


def find_crashing_clients(
    run_one_by_one: Action, recover: Action, replay: Action, quarantine: Callable[[int, int], None]
) -> None:
    """Run a round with one client at a time until no worker dies; clients that crash their worker are excluded.

    recover: called after a loss that no client caused. replay: returns to the state before the round. quarantine:
    excludes a client of a variant, (variant, client). Raises RuntimeError when an excluded client still crashes its
    process.
    """
    crashes: Counter[tuple[int, int]] = Counter()
    while True:
        try:
            persist("a round with one client at a time", run_one_by_one, recover)
            break
        except ClientCrashed as error:
            replay()
            crashes[error.variant, error.client] += 1
            if crashes[error.variant, error.client] > CRASHES:
                raise RuntimeError(f"client {error.client} was left out, but still crashes its process") from error
            if crashes[error.variant, error.client] == CRASHES:
                quarantine(error.variant, error.client)
    replay()
