from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as T
from torchvision.transforms import functional as F

from opencrate.data.augment.randaugment import augment_images
from opencrate.data.datasets.pictures import Arrays
from opencrate.data.feeds.feed import Split, generator
from opencrate.data.feeds.resident import Resident, fits
from opencrate.data.opening import open_pictures
from opencrate.data.settings import Augmentation, Dataset

SIZE, COUNT = 8, 26
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
PADDED = Augmentation("padded", padding=0.25)


def settings(in_chans: int = 3, **changes) -> Dataset:
    kind = {"num_classes": COUNT, "size": SIZE, "in_chans": in_chans, "mean": MEAN[:in_chans], "std": STD[:in_chans]}
    return Dataset(**{"crop_pct": 1.0, **kind, **changes})


def made_up(in_chans: int = 3, shape: tuple[int, int] = (SIZE, SIZE)) -> Arrays:
    """Picture i is of class i."""
    values = np.random.default_rng(0).integers(0, 256, (COUNT, *shape, 3), np.uint8)
    images = values if in_chans == 3 else values[..., 0]
    return Arrays(images, np.arange(COUNT), map(str, range(COUNT)), "made-up")


def resident(in_chans: int = 3, augment: Augmentation = PADDED, augmented: bool = True, **more) -> Resident:
    return Resident(made_up(in_chans), settings(in_chans), augment, augmented, **more)


def union(batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> dict[int, torch.Tensor]:
    """Class, which tells the picture, → what became of it; each at most once."""
    seen: dict[int, torch.Tensor] = {}
    for images, targets in batches:
        for image, target in zip(images, targets.tolist(), strict=True):
            assert target not in seen
            seen[target] = image
    return seen


def same(a: dict[int, torch.Tensor], b: dict[int, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[i], b[i]) for i in a)


def trained(feed: Resident, world: int = 1, parts: int = 1, epoch: int = 3, start: int = 0, mirrored: bool = False):
    splits = [Split(8, parts, rank, world, mirrored) for rank in range(world)]
    return union(batch for split in splits for batch in feed.train(epoch, start, split))


class TestCrop:
    @pytest.mark.parametrize("in_chans", [1, 3])
    def test_is_torchvisions(self, in_chans):
        """Every shift within a border of two pixels, flipped and not, picture by picture."""
        feed, pictures = resident(in_chans), made_up(in_chans)
        moves = [(top, left, flip) for top in range(5) for left in range(5) for flip in (False, True)]
        chosen = torch.arange(len(moves)) % COUNT
        mine = feed.crop(feed.images, chosen, torch.tensor([m[:2] for m in moves]), torch.tensor([m[2] for m in moves]))
        for k, (top, left, flip) in enumerate(moves):
            image = F.crop(F.pad(pictures.picture(int(chosen[k])), [2]), top, left, SIZE, SIZE)
            image = F.pil_to_tensor(F.hflip(image) if flip else image)
            assert torch.equal(mine[k], feed.normalise(image[None])[0])  # to the bit
            expected = F.normalize(image.double() / 255, MEAN[:in_chans], STD[:in_chans])
            torch.testing.assert_close(mine[k].double(), expected, rtol=0, atol=1e-6)

    def test_without_a_border_nothing_moves(self):
        feed = resident(augment=Augmentation("none", flip=0.0))
        for target, image in trained(feed).items():
            assert torch.equal(image, feed.normalise(feed.images[target, None])[0])

    @pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
    def test_resized_crops_are_torchvisions(self, interpolation):
        augment = Augmentation("resized", scale=(0.1, 1.0), interpolation=interpolation)
        feed, chosen = resident(augment=augment), torch.arange(COUNT)
        boxes, flips = feed._places(torch.Generator().manual_seed(0)), chosen % 2 == 0
        assert boxes.shape == (COUNT, 4)
        mine = feed.crop(feed.images, chosen, boxes, flips)
        for i, (box, flip) in enumerate(zip(boxes.tolist(), flips, strict=True)):
            size, mode = [SIZE, SIZE], T.InterpolationMode(interpolation)
            image = F.resized_crop(feed.images[i].float(), *box, size, mode, antialias=True).clamp(0, 255)
            expected = F.normalize((F.hflip(image) if flip else image) / 255, MEAN, STD)
            torch.testing.assert_close(mine[i], expected, rtol=0, atol=1e-4)

    def test_evaluation_is_not_cropped(self):
        feed = resident(augment=Augmentation("resized"), augmented=False)
        ((images, _),) = feed.evaluate(COUNT)
        assert torch.equal(images, feed.normalise(feed.images))


RESIZED = Augmentation("resized", erase=0.25)


class TestTrain:
    def test_covers_each_picture_at_most_once(self):
        feed = resident()
        assert (len(feed), feed.steps(8)) == (COUNT, 3)
        assert len(trained(feed)) == 24

    @pytest.mark.parametrize("world", [1, 2, 4])
    @pytest.mark.parametrize("parts", [1, 2])
    @pytest.mark.parametrize("mirrored", [False, True])
    @pytest.mark.parametrize("augment", [PADDED, RESIZED], ids=["padded", "resized"])
    def test_is_the_same_on_any_number_of_processes(self, world, parts, mirrored, augment):
        if mirrored and world * parts == 8:
            parts = 1
        feeds = [resident(augment=augment) for _ in range(2)]
        divided, whole = trained(feeds[0], world, parts, mirrored=mirrored), trained(feeds[1])
        assert divided.keys() == whole.keys()
        for target, image in whole.items():  # products of other batch sizes may round otherwise
            torch.testing.assert_close(divided[target], image, rtol=0, atol=0 if augment is PADDED else 1e-5)

    def test_steps_hold_the_same_pictures_on_any_number_of_processes(self):
        feed = resident()
        whole = [set(targets.tolist()) for _, targets in feed.train(0, 0, Split(8))]
        halves = [[set(t.tolist()) for _, t in feed.train(0, 0, Split(8, 1, rank, 2))] for rank in range(2)]
        assert whole == [a | b for a, b in zip(*halves, strict=True)]

    @pytest.mark.parametrize("augment", [PADDED, RESIZED], ids=["padded", "resized"])
    def test_begins_anywhere(self, augment):
        feed, split = resident(augment=augment), Split(8, 2, 1, 2)
        whole, tail = list(feed.train(3, 0, split)), list(resident(augment=augment).train(3, 2, split))
        assert len(whole) == 6
        assert len(tail) == 2
        for (a, b), (c, d) in zip(whole[4:], tail, strict=True):
            assert torch.equal(a, c)
            assert torch.equal(b, d)
        assert list(feed.train(3, 3, split)) == []

    def test_differs_between_epochs_and_seeds(self):
        variants = [trained(resident(seed=seed), epoch=epoch) for seed in (0, 1) for epoch in (0, 1)]
        for i, one in enumerate(variants):
            for other in variants[:i]:
                both = one.keys() & other.keys()
                assert sum(torch.equal(one[target], other[target]) for target in both) < len(both) / 4

    def test_shifts_and_flips_are_evenly_drawn(self):
        """One bright pixel per picture tells where it went: all 25 shifts occur, and half are flipped."""
        count = 4000
        images = np.zeros((count, SIZE, SIZE), np.uint8)
        images[:, 4, 2] = 255
        pictures = Arrays(images, np.zeros(count, int), "ab", "made-up")
        feed = Resident(pictures, settings(1, mean=(0.0,), std=(1.0,)), PADDED, True)
        ((moved, _),) = feed.train(0, 0, Split(count))
        places = moved.flatten(1).argmax(1)
        rows, columns = places // SIZE, places % SIZE  # rows 2 … 6; columns 0 … 4, or flipped 3 … 7
        assert rows.bincount()[2:].tolist() == pytest.approx([count / 5] * 5, abs=130)  # five standard deviations
        weights = [1, 1, 1, 2, 2, 1, 1, 1]
        assert columns.bincount().tolist() == pytest.approx([count * w / 10 for w in weights], abs=130)

    def test_a_feed_that_is_not_varied_is_not(self):
        feed = resident(augment=Augmentation("padded", flip=1.0), augmented=False)
        for target, image in trained(feed).items():
            assert torch.equal(image, feed.normalise(feed.images[target, None])[0])

    def test_sees_the_whole_picture(self):
        """As the worker processes' training does; evaluation sees the centre."""
        pictures, data = made_up(shape=(20, 12)), settings(crop_pct=0.5)
        feed = Resident(pictures, data, Augmentation("none", flip=0.0, interpolation="bilinear"), True)
        whole = F.pil_to_tensor(F.resize(pictures.picture(4), [SIZE, SIZE], T.InterpolationMode.BILINEAR))
        assert torch.equal(feed.images[4], whole)


RANDAUGMENT = Augmentation("padded", padding=0.25, randaugment="torchvision-n2-m14")


class TestRandAugment:
    def test_the_border_is_added_afterwards(self):
        """Two black lines and columns on every side, whatever became of what is within them."""
        feed = resident(augment=RANDAUGMENT)
        augmented = feed._augmented(0)
        for border in (augmented[..., :2, :], augmented[..., -2:, :], augmented[..., :2], augmented[..., -2:]):
            assert border.eq(0).all()
        assert (augmented != feed.images).any(0).any(0)[2:-2, 2:-2].all()

    def test_is_what_is_cropped_and_flipped(self):
        """Without either, a batch is the augmented pictures; the feed's own are as before."""
        feed = resident(augment=Augmentation("none", flip=0.0, randaugment="torchvision-n1-m14"))
        expected = feed.images.clone()
        augment_images(expected, T.RandAugment(1, 14, interpolation=T.InterpolationMode.BICUBIC), generator(0, 3, 2))
        before = feed.images.clone()
        for target, image in trained(feed).items():
            assert torch.equal(image, feed.normalise(expected[target, None])[0])
        assert torch.equal(feed.images, before)
        assert sum(torch.equal(a, b) for a, b in zip(expected, before, strict=True)) < COUNT / 3

    @pytest.mark.parametrize("in_chans", [1, 3])
    def test_follows_from_seed_and_epoch(self, in_chans):
        first, again, later, other = (
            trained(resident(in_chans, RANDAUGMENT, seed=seed), epoch=epoch)
            for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))
        )
        assert same(first, again)
        for variant in (later, other):
            both = first.keys() & variant.keys()
            assert sum(torch.equal(first[target], variant[target]) for target in both) < len(both) / 4

    @pytest.mark.parametrize(("world", "parts"), [(2, 1), (2, 2), (4, 1)])
    def test_is_the_same_on_any_number_of_processes(self, world, parts):
        feeds = [resident(augment=RANDAUGMENT) for _ in range(world)]
        shares = (feed.train(3, 0, Split(8, parts, rank, world)) for rank, feed in enumerate(feeds))
        assert same(union(batch for share in shares for batch in share), trained(resident(augment=RANDAUGMENT)))

    def test_begins_anywhere(self):
        whole = list(resident(augment=RANDAUGMENT).train(3, 0, Split(8)))
        tail = list(resident(augment=RANDAUGMENT).train(3, 1, Split(8)))
        assert [len(whole), len(tail)] == [3, 2]
        for (a, b), (c, d) in zip(whole[1:], tail, strict=True):
            assert torch.equal(a, c)
            assert torch.equal(b, d)

    def test_leaves_what_else_is_drawn_as_it_was(self):
        """No round at all: the crops and flips are those of a feed without it."""
        none = Augmentation("padded", padding=0.25, randaugment="torchvision-n0-m14")
        assert same(trained(resident(augment=none)), trained(resident()))

    def test_evaluation_is_not_varied(self):
        feed, plain = (resident(augment=augment, augmented=False) for augment in (RANDAUGMENT, PADDED))
        assert same(union(feed.evaluate(8)), union(plain.evaluate(8)))

    def test_an_unknown_string_is_refused(self):
        with pytest.raises(ValueError, match=r"^augment.randaugment 'auto' is neither torchvision-nN-mM nor [^\n]*$"):
            resident(augment=Augmentation("padded", randaugment="auto"))


class TestErase:
    def erased(self, share: float, count: int = 4000) -> torch.Tensor:
        """Where pictures of one colour, which is not the mean, became zero: (count, SIZE, SIZE)."""
        images = np.full((count, 16, 16, 3), 255, np.uint8)
        pictures = Arrays(images, np.zeros(count, int), "ab", "made-up")
        feed = Resident(pictures, settings(size=16), Augmentation("none", erase=share), True)
        ((batch, _),) = feed.train(0, 0, Split(count))
        zero = batch == 0  # exactly
        assert torch.equal(zero.any(1), zero.all(1))
        untouched = feed.normalise(torch.full((1, 3, 1, 1), 255))
        assert torch.equal(batch, torch.where(zero, 0.0, untouched))
        return zero.all(1)

    @pytest.mark.parametrize("share", [0.25, 1.0])
    def test_share_of_pictures(self, share):
        count = self.erased(share).flatten(1).any(1).sum().item()
        assert count == pytest.approx(4000 * share, abs=5 * (4000 * share * (1 - share)) ** 0.5)

    def test_rectangles(self):
        """Full, of 2 to 33 % of 256 pixels but for the rounding of their sides, anywhere."""
        erased = self.erased(1.0)
        areas, heights, widths = erased.sum((1, 2)), erased.any(2).sum(1), erased.any(1).sum(1)
        assert torch.equal(areas, heights * widths)
        assert ((heights - 0.5) * (widths - 0.5)).max() <= 0.33 * 256
        assert ((heights + 0.5) * (widths + 0.5)).min() >= 0.02 * 256
        assert areas.double().mean().item() == pytest.approx(0.175 * 256, rel=0.03)  # the mean of U(0.02, 0.33)
        assert erased.any(0).all()

    def test_nothing_else_changes(self):
        """Neither by a share of zero, nor outside the rectangles by one of a half."""
        zero, half = (
            trained(resident(augment=Augmentation("padded", padding=0.25, erase=share))) for share in (0.0, 0.5)
        )
        plain = trained(resident())
        assert same(plain, zero)
        changed = [target for target in plain if not torch.equal(plain[target], half[target])]
        assert 4 < len(changed) < 20
        for target in plain:
            outside = half[target] != 0
            assert torch.equal(half[target][outside], plain[target][outside])

    def test_is_the_same_on_any_number_of_processes(self):
        augment = Augmentation("padded", erase=0.5)
        assert same(trained(resident(augment=augment), 2, 2), trained(resident(augment=augment)))

    @pytest.mark.parametrize("share", [-0.1, 1.1])
    def test_is_a_probability(self, share):
        with pytest.raises(ValueError, match=rf"^augment.erase must be between 0 and 1, got {share}$"):
            Augmentation(erase=share)


class TestDecode:
    @pytest.mark.parametrize("in_chans", [1, 3])
    @pytest.mark.parametrize(("augmented", "crop_pct"), [(True, 0.5), (False, 1.0), (False, 0.99)])
    def test_arrays_of_the_size_are_taken_as_they_are(self, in_chans, augmented, crop_pct, monkeypatch):
        """And are what they would become one by one."""
        pictures, data = made_up(in_chans), settings(in_chans, crop_pct=crop_pct)
        monkeypatch.setattr("opencrate.data.feeds.resident._is_prepared", lambda *given: False)
        expected = Resident(pictures, data, PADDED, augmented)
        monkeypatch.undo()
        monkeypatch.setattr(Arrays, "picture", lambda *given: pytest.fail("a picture was decoded"))
        feed = Resident(pictures, data, PADDED, augmented)
        assert torch.equal(feed.images, expected.images)
        assert torch.equal(feed.targets, expected.targets)
        assert (feed.targets.dtype, len(feed.decode_failures)) == (torch.int64, 0)
        pictures.images[:] = 0  # which remain the set's own
        assert torch.equal(feed.images, expected.images)

    @pytest.mark.parametrize(
        ("shape", "in_chans", "data", "augmented"),
        [
            ((SIZE, SIZE), 3, settings(3, crop_pct=0.5), False),
            ((SIZE, SIZE), 1, settings(3), True),
            ((SIZE, SIZE), 3, settings(1), True),
            ((SIZE, SIZE + 1), 3, settings(3), True),
        ],
    )
    def test_others_are_not(self, shape, in_chans, data, augmented):
        pictures, seen = made_up(in_chans, shape), []
        pictures.picture = lambda i: seen.append(i) or Arrays.picture(pictures, i)
        Resident(pictures, data, PADDED, augmented)
        assert seen == list(range(COUNT))


class TestEvaluate:
    @pytest.mark.parametrize("world", [1, 2, 3, 8, 26, 40])
    @pytest.mark.parametrize("batch", [1, 5, 100])
    def test_covers_each_picture_once(self, world, batch):
        feed = resident(augmented=False)
        batches = [b for rank in range(world) for b in feed.evaluate(batch, rank, world)]
        assert all(0 < len(targets) <= batch for _, targets in batches)
        assert union(iter(batches)).keys() == set(range(COUNT))

    @pytest.mark.parametrize("mode", [T.InterpolationMode.BICUBIC, T.InterpolationMode.BILINEAR])
    def test_sees_the_centre(self, mode):
        pictures, augment = made_up(shape=(20, 12)), Augmentation(interpolation=mode.value)
        feed = Resident(pictures, settings(crop_pct=0.5), augment, False)
        images, targets = next(feed.evaluate(COUNT))
        assert targets.tolist() == list(range(COUNT))
        for i in range(COUNT):
            centre = F.center_crop(F.resize(pictures.picture(i), [16], mode), [SIZE])
            expected = F.normalize(F.pil_to_tensor(centre).double() / 255, MEAN, STD)
            torch.testing.assert_close(images[i].double(), expected, rtol=0, atol=1e-6)

    def test_colour_for_a_grey_network_and_grey_for_a_colour_one(self):
        grey = Resident(made_up(3), settings(1), PADDED, False)
        assert np.array_equal(grey.images[3, 0], np.asarray(made_up(3).picture(3).convert("L")))
        colour = Resident(made_up(1), settings(3), PADDED, False)
        assert np.array_equal(colour.images[3], np.stack([made_up(1).images[3]] * 3))


class TestBroken:
    def folder(self, root: Path, broken: int) -> Path:
        for i in range(20):
            file = root / "train" / str(i % 2) / f"{i:02d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (SIZE, SIZE), (10 * i, 0, 0)).save(file)
            if i < broken:
                file.write_bytes(file.read_bytes()[:40])
        return root

    def test_are_left_out_and_counted(self, tmp_path, caplog):
        pictures = open_pictures(settings(root=str(self.folder(tmp_path, 2))), True)
        feed = Resident(pictures, settings(max_decode_failures=0.1), PADDED, False)
        assert (len(feed), len(feed.decode_failures)) == (18, 2)
        assert [record.args[0] for record in caplog.records] == [f"{tmp_path}/train/{i}/0{i}.png" for i in range(2)]
        images, targets = next(feed.evaluate(100))
        reds = (images[:, 0, 0, 0] * STD[0] + MEAN[0]) * 255
        pairs = sorted(zip(reds.round().int().tolist(), targets.tolist(), strict=True))
        assert pairs == [(10 * i, i % 2) for i in range(2, 20)]
        assert len(torch.cat([t for _, t in feed.train(0, 0, Split(6))])) == 18

    def test_too_many_stop(self, tmp_path):
        pictures = open_pictures(settings(root=str(self.folder(tmp_path, 3))), True)
        with pytest.raises(
            ValueError, match=r"^3 of 20 pictures do not decode, more than the fraction 0.1 that [^\n]*$"
        ):
            Resident(pictures, settings(max_decode_failures=0.1), PADDED, False)

    def test_all(self, tmp_path):
        pictures = open_pictures(settings(root=str(self.folder(tmp_path, 20))), True)
        with pytest.raises(ValueError, match=r"^none of 20 pictures decodes$"):
            Resident(pictures, settings(max_decode_failures=1.0), PADDED, False)


class TestFits:
    @pytest.mark.parametrize(
        ("augment", "augmented", "expected"),
        [
            (Augmentation("padded"), True, True),
            (Augmentation("none"), True, True),
            (Augmentation("resized"), True, True),
            (Augmentation("resized"), False, True),
            (Augmentation("resized", randaugment="rand-m9"), True, False),
            (Augmentation("padded", randaugment="torchvision-n2-m14", erase=0.5), True, True),
            (Augmentation("resized", randaugment="torchvision-n2-m14"), True, True),
            (Augmentation("padded", randaugment="rand-m9"), True, False),
            (Augmentation("padded", randaugment="rand-m9"), False, True),
        ],
    )
    def test_by_augmentation(self, augment, augmented, expected):
        assert fits(made_up(), settings(), augment, augmented) is expected

    @pytest.mark.parametrize("shape", [(SIZE, SIZE + 1), (SIZE + 1, SIZE), (2 * SIZE, 2 * SIZE)])
    def test_resized_crops_are_cut_from_pictures_of_the_networks_size(self, shape):
        augment, pictures, one = Augmentation("resized"), made_up(shape=shape), made_up()
        assert not fits(pictures, settings(), augment, True)
        assert fits(pictures, settings(), augment, False)
        assert fits(pictures, settings(), PADDED, True)
        one.picture = lambda i: pictures.picture(i) if i == COUNT - 1 else Arrays.picture(one, i)
        assert not fits(one, settings(), augment, True)

    def test_a_picture_that_does_not_decode_has_no_size(self):
        def damaged(i):
            if i == 0:
                raise OSError("cut off")
            return Arrays.picture(pictures, i)

        pictures = made_up()
        pictures.picture = damaged
        assert fits(pictures, settings(), Augmentation("resized"), True)

    def test_by_size(self, monkeypatch):
        needed = COUNT * 3 * SIZE**2
        for limit, expected in ((needed, True), (needed - 1, False)):
            monkeypatch.setattr("opencrate.data.feeds.resident.LIMIT", limit)
            assert fits(made_up(), settings(), PADDED, True) is expected
        assert fits(made_up(), settings(1), PADDED, True)
