"""Translates a search for Ray Tune: tuner configuration and parameter space."""

from typing import Any

from ray import tune

from hedgerow.searchspaces.spaces.packing import PACK
from hedgerow.searchspaces.spaces.search_section import SearchKind, SearchSetup


def tuner_spec(
    search: SearchKind, setup: SearchSetup, packs: list[list[int]] | None, room: int
) -> tuple[tune.TuneConfig, dict[str, Any] | None]:
    """Returns the configuration of `tune.Tuner`, with the searcher and scheduler of a search kind, and its parameter
    space: None when a searcher proposes the configurations.

    packs: numbers of the configurations in each trial; None: one per trial. room: trials that fit on the cluster.
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
        return config, None
    configurations = setup.configurations
    if packs is None:
        return config, {"overrides": tune.grid_search(configurations)}
    return config, {PACK: tune.grid_search([[(i, configurations[i]) for i in pack] for pack in packs])}
