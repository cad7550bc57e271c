import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as T
from torchvision.transforms import functional as F
from torchvision.transforms.autoaugment import _apply_op

from opencrate.data.augment.randaugment import augment_images, operate

BICUBIC, BILINEAR = T.InterpolationMode.BICUBIC, T.InterpolationMode.BILINEAR
SHAPES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
SIGNED = (*SHAPES, "Brightness", "Color", "Contrast", "Sharpness")
UNSIGNED = ("Identity", "Posterize", "Solarize", "AutoContrast", "Equalize")  # of torchvision's documentation


def photos(count: int = 12, shape: tuple[int, int] = (20, 20), in_chans: int = 3) -> list[Image.Image]:
    """Half of them noise, half of them smooth."""
    rng = np.random.default_rng(0)
    sides = [shape, (4, 4)]
    arrays = [rng.integers(0, 256, (*sides[i % 2], 3), np.uint8) for i in range(count)]
    pictures = [Image.fromarray(array).resize(shape[::-1], Image.Resampling.BICUBIC) for array in arrays]
    return [picture if in_chans == 3 else picture.convert("L") for picture in pictures]


def stacked(pictures: list[Image.Image]) -> torch.Tensor:
    return torch.stack([F.pil_to_tensor(picture) for picture in pictures])


def magnitude(name: str, level: int, shape: tuple[int, int]) -> float:
    values = T.RandAugment()._augmentation_space(31, shape)[name][0]
    return float(values[level]) if values.ndim else 0.0


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class TestOperate:
    """Each is compared with what torchvision's RandAugment does to the pictures one by one."""

    @pytest.mark.parametrize("name", SHAPES)
    @pytest.mark.parametrize("mode", [BICUBIC, BILINEAR])
    @pytest.mark.parametrize(("shape", "in_chans"), [((20, 20), 3), ((13, 22), 3), ((20, 20), 1)])
    def test_shapes_are_pillows(self, name, mode, shape, in_chans):
        pictures = photos(shape=shape, in_chans=in_chans)
        for level in (0, 1, 14, 30):
            for signed in (magnitude(name, level, shape), -magnitude(name, level, shape)):
                mine = operate(stacked(pictures), name, signed, mode)
                assert torch.equal(mine, stacked([_apply_op(p, name, signed, mode, None) for p in pictures]))

    @pytest.mark.parametrize("name", [*SIGNED[len(SHAPES) :], *UNSIGNED])
    @pytest.mark.parametrize("in_chans", [1, 3])
    def test_colours_are_torchvisions(self, name, in_chans):
        """Within 1 of 255 of Pillow's and of those for one tensor: where they round, they differ among themselves."""
        pictures = photos(in_chans=in_chans)
        images = stacked(pictures)
        for level in (0, 1, 14, 30):
            value = magnitude(name, level, (20, 20))
            for signed in (value, -value) if name in SIGNED else (value,):
                mine = operate(images, name, signed, BICUBIC).int()
                for theirs in (pictures, images):
                    one_by_one = [_apply_op(p, name, signed, BICUBIC, None) for p in theirs]
                    expected = stacked(one_by_one) if theirs is pictures else torch.stack(one_by_one)
                    torch.testing.assert_close(mine, expected.int(), rtol=0, atol=1)

    def test_saturation_leaves_grey_as_it_is(self):
        images = stacked(photos(in_chans=1))
        assert torch.equal(operate(images, "Color", 0.9, BICUBIC), images)

    @pytest.mark.parametrize("name", [*SIGNED, *UNSIGNED])
    def test_autocast_does_not_reach_it(self, name):
        images, value = stacked(photos()), magnitude(name, 14, (20, 20))
        with torch.autocast("cpu", torch.bfloat16):
            mine = operate(images, name, value, BICUBIC)
        assert torch.equal(mine, operate(images, name, value, BICUBIC))


class TestVary:
    def test_each_operation_and_sign_is_as_frequent_as_torchvisions(self):
        """Copies of one picture, not too bright: what became of each tells what it drew."""
        count, before = 5600, stacked(photos(1)) // 2 + 30
        images = before.repeat(count, 1, 1, 1)
        augment_images(images, T.RandAugment(1, 14, interpolation=BICUBIC), generator())
        expected: dict[bytes, float] = {}
        for name in (*SIGNED, *UNSIGNED):
            value = magnitude(name, 14, (20, 20))
            for signed in (value, -value) if name in SIGNED else (value,):
                result = operate(before, name, signed, BICUBIC).numpy().tobytes()
                expected[result] = count / 14 / (2 if name in SIGNED else 1)
        results = [image.numpy().tobytes() for image in images]
        assert set(results) == expected.keys()
        assert len(expected) == 2 * len(SIGNED) + len(UNSIGNED)  # no two are alike
        for result, share in expected.items():
            assert results.count(result) == pytest.approx(share, abs=5 * share**0.5)

    def test_rounds_follow_each_other(self):
        twice, once, draw = stacked(photos(200)), stacked(photos(200)), generator()
        augment_images(twice, T.RandAugment(2, 14, interpolation=BICUBIC), generator())
        for _ in range(2):
            augment_images(once, T.RandAugment(1, 14, interpolation=BICUBIC), draw)
        assert torch.equal(twice, once)

    def test_does_not_depend_on_how_many_go_together(self, monkeypatch):
        whole, parts = stacked(photos(200)), stacked(photos(200))
        augment_images(whole, T.RandAugment(2, 14, interpolation=BICUBIC), generator())
        monkeypatch.setattr("opencrate.data.augment.randaugment.VALUES", 3 * whole[0].numel())
        augment_images(parts, T.RandAugment(2, 14, interpolation=BICUBIC), generator())
        assert torch.equal(whole, parts)

    def test_one_picture_alone(self):
        (before,) = stacked(photos(1))
        values = [(name, magnitude(name, 14, (20, 20))) for name in (*SIGNED, *UNSIGNED)]
        values += [(name, -value) for name, value in values if name in SIGNED]
        known = {operate(before[None], *value, BICUBIC).numpy().tobytes() for value in values}
        for seed in range(5):
            image = before[None].clone()
            augment_images(image, T.RandAugment(1, 14, interpolation=BICUBIC), generator(seed))
            assert image.numpy().tobytes() in known

    def test_knows_every_operation_of_torchvision(self):
        assert T.RandAugment()._augmentation_space(31, (20, 20)).keys() == {*SIGNED, *UNSIGNED}


@pytest.mark.gpu
@pytest.mark.parametrize("in_chans", [1, 3])
def test_cuda_draws_and_does_the_same(in_chans):
    here, there = stacked(photos(400, in_chans=in_chans)), stacked(photos(400, in_chans=in_chans)).cuda()
    for images in (here, there):
        augment_images(images, T.RandAugment(1, 14, interpolation=BICUBIC), generator())
    torch.testing.assert_close(there.cpu().int(), here.int(), rtol=0, atol=1)
