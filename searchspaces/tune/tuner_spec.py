"""A search as Ray Tune takes it: configuration of the tuner, and parameter space."""

from dataclasses import dataclass
from typing import Any

from ray import tune

from hedgerow.searchspaces.spaces.packing import PACK
from hedgerow.searchspaces.spaces.search_section import SearchKind, SearchSetup


@dataclass(frozen=True)
class TunerSpec:
    """What `tune.Tuner` is given. space: its parameter space; None where a searcher proposes the configurations."""

    config: tune.TuneConfig
    space: dict[str, Any] | None


def tuner_spec(search: SearchKind, setup: SearchSetup, packs: list[list[int]] | None, room: int) -> TunerSpec:
    """The searcher and the scheduler that a kind builds, and the trials that they get.

    packs: which configurations share a trial; None: none do. room: trials that the cluster holds at once.
    """
    searcher, scheduler = search.build(setup)
    config = tune.TuneConfig(
        search_alg=searcher,
        scheduler=scheduler,
        num_samples=1 if searcher is None else search.samples or 1,
        # Tune's limit counts paused trials as running.
        max_concurrent_trials=None if search.pauses_trials else room,
        reuse_actors=True,
    )
    if searcher is not None:
        return TunerSpec(config, None)
    known = setup.configurations
    if packs is None:
        return TunerSpec(config, {"overrides": tune.grid_search(known)})
    return TunerSpec(config, {PACK: tune.grid_search([[(i, known[i]) for i in pack] for pack in packs])})
