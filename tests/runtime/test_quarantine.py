"""Clients that crash their process are left out, up to a tenth of the population."""

import pytest
from families import INLINE
from ray_runs import small

from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.runtime.server import MOST_QUARANTINED


def server(tmp_path):
    experiment = small(tmp_path, clients_per_round="all", **INLINE)
    return build_coordinator([experiment], *check(experiment, None), [tmp_path / "run" / "checkpoints"]).servers[0]


def test_one_client_too_many_ends_the_run_and_names_them(tmp_path):
    one = server(tmp_path)
    share = int(MOST_QUARANTINED * one.population)
    for client in range(share):
        one.quarantine(client)
    with pytest.raises(RuntimeError, match=rf"round 1: .* {', '.join(map(str, range(share + 1)))}; .* at most 10% of"):
        one.quarantine(share)


def test_from_the_next_round_on_it_takes_no_part(tmp_path):
    one = server(tmp_path)
    one.quarantine(2)
    (exchange, *_) = next(one.run_round())
    assert exchange.clients.tolist() == [client for client in range(one.population) if client != 2]
