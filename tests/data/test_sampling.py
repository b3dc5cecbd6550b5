"""Index streams: every sample once per epoch, and nothing depends on who else is drawn."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.algorithms.core.client_data import BatchSpec
from hedgerow.platform.data.sampling import draw_batches, keyed_hash, sample_clients

KEY = (0, 1, 0, "train")


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 23), min_size=1, max_size=6),
    size=st.one_of(st.none(), st.integers(1, 9)),
    epochs=st.integers(1, 3),
    shuffle=st.booleans(),
)
def test_every_epoch_draws_every_sample_once(sizes, size, epochs, shuffle):
    clients, counts = np.arange(len(sizes)) + 7, np.array(sizes)
    positions, mask = draw_batches(BatchSpec(size=size, epochs=epochs, shuffle=shuffle), KEY, clients, counts)
    for row, n in enumerate(sizes):
        drawn = positions[row][mask[row]]
        assert len(drawn) == n * epochs
        for epoch in range(epochs):
            assert sorted(drawn[epoch * n : (epoch + 1) * n]) == list(range(n))


def test_each_epoch_has_an_order_of_its_own_that_is_equally_likely():
    """NumPy's argsort of one hash per sample is the order; over many clients and epochs, each of 3! is as frequent."""
    clients, counts = np.arange(700), np.full(700, 3)
    positions, mask = draw_batches(BatchSpec(size=2, epochs=3), KEY, clients, counts)
    assert mask.sum(axis=2).tolist() == [[2, 1] * 3] * 700
    drawn = positions[mask].reshape(700, 3, 3)
    for client in (0, 1, 699):
        for epoch in range(3):
            assert drawn[client, epoch].tolist() == np.argsort(keyed_hash(*KEY, client, epoch, np.arange(3))).tolist()
    orders, times = np.unique(drawn.reshape(-1, 3), axis=0, return_counts=True)
    # The standard deviation of a share is 0.008.
    assert len(orders) == 6
    assert np.abs(times / times.sum() - 1 / 6).max() < 0.04
    # Two epochs of a client agree as often as two orders that are drawn independently.
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert abs((drawn[:, one] == drawn[:, other]).all(1).mean() - 1 / 6) < 0.07


def test_a_clients_draws_do_not_depend_on_the_others():
    spec = BatchSpec(size=4, epochs=2)
    together, mask = draw_batches(spec, KEY, np.array([3, 5, 9]), np.array([10, 30, 7]))
    alone, mask_alone = draw_batches(spec, KEY, np.array([5]), np.array([30]))
    assert (together[1][mask[1]] == alone[0][mask_alone[0]]).all()


def test_draws_differ_by_round_exchange_stream_client_and_seed():
    spec = BatchSpec(size=None)
    seen = {
        tuple(draw_batches(spec, key, np.array([client]), np.array([50]))[0].ravel())
        for client in (0, 1)
        for key in [(0, 1, 0, "train"), (0, 2, 0, "train"), (0, 1, 1, "train"), (0, 1, 0, "other"), (1, 1, 0, "train")]
    }
    assert len(seen) == 10


def test_steps_bound_the_stream_across_epochs():
    positions, mask = draw_batches(BatchSpec(size=4, steps=7), KEY, np.array([0, 1]), np.array([10, 3]))
    assert positions.shape == (2, 7, 4)
    assert mask.sum(axis=2).tolist() == [[4, 4, 2, 4, 4, 2, 4], [3, 3, 3, 3, 3, 3, 3]]


def test_cohorts_are_uniform_without_replacement_and_a_function_of_seed_and_round():
    cohorts = np.array([sample_clients(0, t, 20, 5) for t in range(4000)])
    assert (np.diff(cohorts, axis=1) > 0).all()
    shares = np.bincount(cohorts.ravel(), minlength=20) / 4000
    assert np.abs(shares - 0.25).max() < 0.03
    assert (sample_clients(0, 17, 20, 5) == cohorts[17]).all()
    assert (sample_clients(3, 1, 6, 6) == np.arange(6)).all()


def test_keyed_hash_scatters_its_bits():
    words = keyed_hash(1, "x", np.arange(20000))
    assert len(np.unique(words)) == 20000
    ones = np.unpackbits(words.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 0.005
