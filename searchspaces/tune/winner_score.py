"""Test score of a winner that ended before its last round, from its last checkpoint."""

from hedgerow.platform.common.errors import first_line
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.factory import Data, build_partition
from hedgerow.searchspaces.results.finished_search import FinishedSearch
from hedgerow.searchspaces.results.trials import Trial, expert_folder


def score_winner(finished: FinishedSearch, data: Data) -> list[str]:
    """Score the winner on test samples in this process, and record its score, unless it has one; returns a warning if
    it cannot be scored.

    data: data set and partition of the search.
    """
    winner, whole = finished.winner, finished.spec.experiment
    if winner is None or finished.test_score or whole.is_stream:
        return []
    try:
        return _score(finished, winner, data)
    except Exception as error:  # the search itself is complete
        return [f"trial {winner.name}, the winner, has no test score: {first_line(error)}"]


def _score(finished: FinishedSearch, winner: Trial, data: Data) -> list[str]:
    whole = finished.spec.experiment
    experiment, (dataset, partition) = finished.spec.trial(winner.overrides), data
    if experiment.task.partition != whole.task.partition or experiment.seed != whole.seed:
        partition = build_partition(experiment, dataset)
    local = experiment.model_copy(update={"resources": Resources(executor="inline", device="cpu")})
    parts = experiment.resources.own_actors
    coordinator = build_coordinator([local.with_solved_noise(len(partition))], dataset, partition, [None], parts=parts)
    try:
        if not coordinator.load_newest(0, expert_folder(finished.folder.path, int(winner.name)).checkpoints):
            return [f"trial {winner.name}, the winner, has no test score: it ended before its first checkpoint"]
        scores = {name: value for name, value in coordinator.test_scores().items() if name.startswith("test_")}
    finally:
        coordinator.close()
    finished.folder.update(tested={"trial": winner.name, "round": coordinator.round, "scores": scores})
    return []
