import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opencrate.data.feeds.feed import Split, generator, order

counts = st.integers(1, 5)


def everywhere(batch: int, parts: int, world: int, mirrored: bool) -> list[torch.Tensor]:
    """The micro-batches of all processes, of a batch that holds the positions 100, 101, …"""
    positions = torch.arange(100, 100 + batch)
    splits = [Split(batch, parts, rank, world, mirrored) for rank in range(world)]
    return [mine for split in splits for mine in split.micro_batches(positions)]


class TestSplit:
    @given(share=counts, parts=counts, world=counts, mirrored=st.booleans())
    def test_micro_batches_partition_the_batch(self, share, parts, world, mirrored):
        batch = share * parts * world * (2 if mirrored else 1)
        pieces = everywhere(batch, parts, world, mirrored)
        assert len(pieces) == parts * world
        assert {len(piece) for piece in pieces} == {Split(batch, parts, 0, world, mirrored).micro_batch}
        assert sorted(torch.cat(pieces).tolist()) == list(range(100, 100 + batch))

    @given(share=counts, parts=counts, world=counts)
    def test_mirrored_micro_batches_hold_the_pairs_of_the_whole(self, share, parts, world):
        """Flipping a micro-batch pairs what flipping the batch pairs."""
        batch = 2 * share * parts * world
        whole = torch.arange(100, 100 + batch)
        partner = dict(zip(whole.tolist(), whole.flip(0).tolist(), strict=True))
        for piece in everywhere(batch, parts, world, mirrored=True):
            assert piece.flip(0).tolist() == [partner[position] for position in piece.tolist()]

    def test_each_process_has_its_own(self):
        assert [m.tolist() for m in Split(8, 2, 1, 2).micro_batches(torch.arange(8))] == [[2, 3], [6, 7]]
        mirrored = Split(8, 2, 1, 2, mirrored=True).micro_batches(torch.arange(8))
        assert [m.tolist() for m in mirrored] == [[1, 6], [3, 4]]

    @pytest.mark.parametrize(
        ("batch", "parts", "world", "mirrored", "pieces"),
        [(10, 2, 2, False, 4), (7, 1, 2, False, 2), (4, 2, 2, True, 8), (9, 1, 1, True, 2)],
    )
    def test_indivisible_batches_are_refused(self, batch, parts, world, mirrored, pieces):
        with pytest.raises(ValueError, match=rf"^a batch of {batch} is not divisible into {pieces} equal parts$"):
            Split(batch, parts, 0, world, mirrored)


keys = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5).map(tuple)


def draws(*key: int) -> list[int]:
    return torch.randint(2**62, (4,), generator=generator(*key)).tolist()


class TestGenerator:
    @given(key=keys)
    def test_depends_on_the_key_alone(self, key):
        before = torch.get_rng_state()
        first = draws(*key)
        torch.rand(3, generator=generator(7))
        assert draws(*key) == first
        assert torch.equal(torch.get_rng_state(), before)

    @given(pair=st.lists(keys, min_size=2, max_size=2, unique=True))
    def test_distinct_keys_give_distinct_streams(self, pair):
        assert not set(draws(*pair[0])) & set(draws(*pair[1]))

    def test_neighbouring_keys_give_distinct_streams(self):
        near = [(), (0,), (0, 0), (0, 0, 0), (0, 0, 0, 0), (1,), (1, 0), (0, 1), (1, 1), (0, 0, 1), (0, 1, 0)]
        assert len({tuple(draws(*key)) for key in near}) == len(near)


class TestOrder:
    @given(length=st.integers(0, 50), seed=st.integers(0, 2**32 - 1), epoch=st.integers(0, 1000))
    def test_is_a_permutation_that_repeats(self, length, seed, epoch):
        first = order(length, seed, epoch)
        assert sorted(first.tolist()) == list(range(length))
        assert torch.equal(order(length, seed, epoch), first)

    def test_differs_between_epochs_and_seeds(self):
        orders = [tuple(order(50, seed, epoch).tolist()) for seed in range(4) for epoch in range(4)]
        assert len(set(orders)) == len(orders)

    def test_no_place_is_preferred(self):
        """Over 2,000 epochs each of 5 samples comes first about 400 times, within five standard deviations of 18."""
        firsts = torch.stack([order(5, 0, epoch)[0] for epoch in range(2000)]).bincount()
        assert (firsts - 400).abs().max() < 90
