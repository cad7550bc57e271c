import inspect
import random
import re

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as T
from torchvision.transforms import functional as F

from opencrate.data.augment.transforms import evaluation_transform, training_transform, whole_transform
from opencrate.data.settings import Augmentation, Dataset
from opencrate.randomness import seeded

BICUBIC, BILINEAR = T.InterpolationMode.BICUBIC, T.InterpolationMode.BILINEAR


@pytest.fixture
def photo() -> Image.Image:
    """Smooth structure and some noise, 90 × 60."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 9, 3), np.uint8)).resize((90, 60), Image.Resampling.BICUBIC)
    return Image.fromarray(np.clip(np.asarray(coarse, int) + rng.integers(-8, 9, (60, 90, 3)), 0, 255).astype(np.uint8))


def settings(in_chans: int = 3, **changes) -> Dataset:
    half = (0.5,) * in_chans
    return Dataset(**{"size": 32, "in_chans": in_chans, "mean": half, "std": half, **changes})


def first(transform) -> object:
    return transform.transforms[0]


class TestEvaluation:
    @pytest.mark.parametrize(("crop_pct", "shorter"), [(0.875, 37), (1.0, 32), (0.5, 64)])
    @pytest.mark.parametrize("mode", [BICUBIC, BILINEAR])
    def test_is_resize_and_centre_crop(self, photo, crop_pct, shorter, mode):
        expected = F.pil_to_tensor(F.center_crop(F.resize(photo, [shorter], mode), [32]))
        assert torch.equal(evaluation_transform(settings(crop_pct=crop_pct), mode.value)(photo), expected)

    def test_is_bicubic_unless_told(self, photo):
        assert torch.equal(evaluation_transform(settings())(photo), evaluation_transform(settings(), "bicubic")(photo))

    def test_a_picture_of_the_size_is_left_as_it_is(self, photo):
        square = photo.crop((0, 0, 32, 32))
        np.testing.assert_array_equal(
            evaluation_transform(settings(crop_pct=1.0))(square), np.asarray(square).transpose(2, 0, 1)
        )

    def test_grey(self, photo):
        assert evaluation_transform(settings(1))(photo.convert("L")).shape == (1, 32, 32)


class TestTraining:
    """Each is repeated by hand, with torchvision's functions and its order of random numbers."""

    def test_resized(self, photo):
        augment = Augmentation(scale=(0.2, 0.7), ratio=(0.5, 2.0), interpolation="bilinear")
        flips = set()
        for seed in range(8):
            with seeded(seed):
                mine = training_transform(settings(), augment)(photo)
            with seeded(seed):
                box = T.RandomResizedCrop.get_params(photo, [0.2, 0.7], [0.5, 2.0])
                flip = torch.rand(1).item() < 0.5
            part = F.resized_crop(photo, *box, [32, 32], BILINEAR)
            assert torch.equal(mine, F.pil_to_tensor(F.hflip(part) if flip else part))
            flips.add(flip)
        assert flips == {True, False}

    def test_padded(self, photo):
        """The whole picture, with a border of a quarter of 32 pixels in which it moves."""
        whole = F.pad(F.resize(photo, [32, 32], BICUBIC), [8])
        seen = set()
        for seed in range(8):
            with seeded(seed):
                mine = training_transform(settings(), Augmentation("padded", padding=0.25, flip=0.0))(photo)
            with seeded(seed):
                top, left, *_ = T.RandomCrop.get_params(whole, (32, 32))
            assert torch.equal(mine, F.pil_to_tensor(F.crop(whole, top, left, 32, 32)))
            seen.add((top, left))
        assert len(seen) == 8

    @pytest.mark.parametrize("flip", [0.0, 1.0])
    def test_none(self, photo, flip):
        whole = F.resize(photo, [32, 32], BICUBIC)
        mine = training_transform(settings(crop_pct=0.5), Augmentation("none", flip=flip))(photo)
        assert torch.equal(mine, F.pil_to_tensor(F.hflip(whole) if flip else whole))

    def test_erased_last_to_the_mean_colour(self, photo):
        plain = F.pil_to_tensor(F.hflip(F.resize(photo, [32, 32], BICUBIC)))
        data = settings(mean=(0.2, 0.4, 0.601))
        colour = torch.tensor([51, 102, 153], dtype=torch.uint8).view(3, 1, 1)
        seen = set()
        for seed in range(20):
            with seeded(seed):
                mine = training_transform(data, Augmentation("none", flip=1.0, erase=0.5))(photo)
            with seeded(seed):
                torch.rand(1)  # for the flip
                erased = torch.rand(1).item() < 0.5
                box = T.RandomErasing.get_params(plain, (0.02, 0.33), (0.3, 3.3), [0.0])[:4]
            assert torch.equal(mine, F.erase(plain, *box, colour) if erased else plain)
            seen.add(box if erased else None)
        assert None in seen
        assert len(seen) > 5

    def test_whole(self, photo):
        expected = F.pil_to_tensor(F.resize(photo, [32, 32], BILINEAR))
        assert torch.equal(whole_transform(settings(crop_pct=0.5), "bilinear")(photo), expected)


def test_what_nobody_chose_is_torchvisions():
    """And a border of 4 pixels at 32, as CIFAR-10's networks are trained with."""

    def default(kind, name):
        return inspect.signature(kind).parameters[name].default

    plain = Augmentation()
    for name in ("scale", "ratio"):
        assert getattr(plain, name) == pytest.approx(default(T.RandomResizedCrop, name))
    assert plain.flip == default(T.RandomHorizontalFlip, "p")
    assert plain.padding * 32 == 4
    assert (plain.erase, plain.mixup, plain.cutmix) == (0, 0, 0)


class TestRandAugment:
    def build(self, text: str, in_chans: int = 3, **changes):
        return training_transform(settings(in_chans), Augmentation(randaugment=text, **changes))

    def test_torchvisions(self):
        chosen = first(self.build("torchvision-n2-m14", interpolation="bilinear"))
        assert isinstance(chosen, T.RandAugment)
        assert (chosen.num_ops, chosen.magnitude, chosen.interpolation) == (2, 14, BILINEAR)

    def test_timms(self):
        from timm.data.auto_augment import RandAugment

        chosen = first(self.build("rand-m9-n3-mstd0.5-mmax12"))
        assert isinstance(chosen, RandAugment)
        assert chosen.num_layers == 3
        assert {(op.magnitude, op.magnitude_std, op.magnitude_max) for op in chosen.ops} == {(9, 0.5, 12)}

    def test_timms_are_those_of_timm(self, photo):
        from timm.data.auto_augment import rand_augment_transform

        mine, theirs = first(self.build("rand-m9-mstd0.5-inc1")), rand_augment_transform("rand-m9-mstd0.5-inc1", {})
        for seed in range(20):
            with seeded(seed):
                image = mine(photo)
            with seeded(seed):
                np.testing.assert_array_equal(image, theirs(photo))

    def test_timm_clips_magnitudes_at_ten(self, photo):
        """A recipe's m14 is not what it seems with timm: it is m10, unless mmax lifts the clip."""
        fourteen, ten, lifted = (first(self.build(f"rand-m{m}-n2")) for m in ("14", "10", "14-mmax30"))
        differ = 0
        for seed in range(20):
            images = []
            for augment in (fourteen, ten, lifted):
                with seeded(seed):
                    images.append(np.asarray(augment(photo)))
            np.testing.assert_array_equal(images[0], images[1])
            differ += not np.array_equal(images[0], images[2])
        assert differ > 5

    @pytest.mark.parametrize("text", ["torchvision-n2-m30", "rand-m9-mstd0.5-inc1", "rand-m9-tweights", "rand-t3a"])
    @pytest.mark.parametrize("in_chans", [1, 3])
    def test_colour_and_grey(self, photo, text, in_chans):
        transform, image = self.build(text, in_chans), photo if in_chans == 3 else photo.convert("L")
        for seed in range(40):
            with seeded(seed):
                assert transform(image).shape == (in_chans, 32, 32)

    def test_comes_first_and_is_drawn_anew(self, photo):
        state = random.getstate()
        images = []
        for seed in range(6):
            with seeded(seed):
                images.append(self.build("rand-m9", crop="none", flip=0.0)(photo).numpy().tobytes())
        assert len(set(images)) > 3
        assert random.getstate() == state

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("auto", "'auto' is neither torchvision-nN-mM nor one of timm's strings (rand-…)"),
            ("torchvision-m9", "'torchvision-m9' is neither torchvision-nN-mM nor one of timm's strings (rand-…)"),
            ("torchvision-n2-m31", "'torchvision-n2-m31': torchvision's magnitudes end at 30"),
            ("rand-m9-q3", "'rand-m9-q3' is not one of timm's strings"),
            ("rand-m9.5", "'rand-m9.5' is not one of timm's strings"),
            ("random-m9", "'random-m9' is not one of timm's strings"),
        ],
    )
    def test_unknown_strings_are_refused(self, text, sentence):
        with pytest.raises(ValueError, match=re.escape(f"augment.randaugment {sentence}") + "$"):
            self.build(text)


def test_pictures_are_normalised_as_imagenets_by_default():
    from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

    assert (Dataset().mean, Dataset().std) == (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
