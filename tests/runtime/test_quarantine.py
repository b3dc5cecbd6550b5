"""Clients that crash their process are left out, up to the share that the experiment file allows."""

import pytest
from families import INLINE
from ray_runs import small

from hedgerow.platform.runtime.factory import check
from hedgerow.platform.runtime.launch import build_coordinator


def server(tmp_path, allowed):
    experiment = small(tmp_path, resources__max_quarantined=allowed, participation=1.0, **INLINE)
    return build_coordinator([experiment], *check(experiment, None), None, [tmp_path / "run"]).servers[0]


def test_one_client_too_many_ends_the_run_and_names_them(tmp_path):
    one = server(tmp_path, allowed=0.1)
    share = int(0.1 * one.population)
    for client in range(share):
        one.quarantine(client)
    with pytest.raises(RuntimeError, match=rf"round 1: .* {', '.join(map(str, range(share + 1)))}; .* 0\.1 "):
        one.quarantine(share)


def test_from_the_next_round_on_it_takes_no_part(tmp_path):
    one = server(tmp_path, allowed=0.5)
    one.quarantine(2)
    (exchange, *_) = next(one.run_round())
    assert exchange.clients.tolist() == [client for client in range(one.population) if client != 2]
