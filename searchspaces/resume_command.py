"""Body of the command `resume`."""

from hedgerow.platform.runs.run_command import resume_runs
from hedgerow.platform.tracking.run_folder import find_run
from hedgerow.platform.ui.command_output import CommandOutput


def resume_any(name: str, address: str | None, changed: bool) -> CommandOutput:
    """Resume a run, all runs of its series, or a search, with the output of `run` or `search`."""
    folder = find_run(name)
    if not folder.is_search:
        return resume_runs(folder, address, changed)
    # Imports Ray Tune, which takes seconds.
    from hedgerow.searchspaces.tune.search_command import resume_one_search

    return resume_one_search(folder, address, changed)
