import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import ks_2samp
from torchvision.transforms import InterpolationMode, RandomErasing, RandomResizedCrop
from torchvision.transforms.v2 import functional as F

from opencrate.data.augment.crops import (
    _boxes,
    centre_weights,
    crop_and_resize,
    crop_boxes,
    erased_boxes,
    resample,
    resample_weights,
    shifted_weights,
)

MODES = ["bicubic", "bilinear"]
BOXES = torch.tensor([[0, 0, 48, 64], [5, 9, 31, 40], [17, 2, 9, 11], [40, 60, 8, 4], [0, 30, 48, 7], [3, 3, 1, 1]])


@pytest.fixture
def images(rng) -> torch.Tensor:
    return torch.randint(0, 256, (len(BOXES), 3, 48, 64), dtype=torch.uint8, generator=rng)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [6, 24, 96])  # each box is made smaller by some and larger by others
def test_equals_torchvision(images, mode, size):
    ours = crop_and_resize(images, BOXES, None, size, mode)
    for image, box, crop in zip(images, BOXES.tolist(), ours, strict=True):
        theirs = F.resized_crop(image.float(), *box, [size, size], InterpolationMode(mode), antialias=True)
        torch.testing.assert_close(crop, theirs, atol=3e-3, rtol=0)  # of 255


@pytest.mark.parametrize(("mode", "bound"), [("bilinear", 1.01), ("bicubic", 1.15)])
@pytest.mark.parametrize("size", [6, 24, 96])
def test_equals_pil(images, mode, bound, size):
    """PIL rounds to whole levels after the columns and again after the rows: |error| ≤ ½ Σ|w| + ½, Σ|w| ≤ 1.28."""
    images = 96 + images // 4  # far from 0 and 255, at which PIL clips both times
    ours = crop_and_resize(images, BOXES, None, size, mode)
    for image, (top, left, h, w), crop in zip(images, BOXES.tolist(), ours, strict=True):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy()).crop((left, top, left + w, top + h))
        theirs = np.array(picture.resize((size, size), Image.Resampling[mode.upper()]))
        assert (crop.permute(1, 2, 0) - torch.from_numpy(theirs)).abs().max() < bound


def test_flips_reverse_the_columns(images):
    flips = torch.tensor([True, False] * 3)
    plain, flipped = (crop_and_resize(images, BOXES, f, 20) for f in (None, flips))
    torch.testing.assert_close(flipped[1::2], plain[1::2], atol=1e-4, rtol=0)
    torch.testing.assert_close(flipped[::2], plain[::2].flip(-1), atol=1e-4, rtol=0)


def test_a_box_of_the_size_is_copied(images):
    boxes = torch.tensor([[7, 11, 16, 16]]).expand(len(images), 4)
    torch.testing.assert_close(
        crop_and_resize(images, boxes, None, 16), images[:, :, 7:23, 11:27].float(), atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("mode", MODES)
def test_weights_are_of_the_box_alone(mode):
    weights = resample_weights(BOXES[:, 1], BOXES[:, 3], 64, 24, mode, torch.float32)
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(BOXES), 24))
    for weight, (_, left, _, w) in zip(weights, BOXES.tolist(), strict=True):
        assert weight[:, :left].eq(0).all()
        assert weight[:, left + w :].eq(0).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("size", "resized"), [(32, 32), (28, 32), (20, 23), (56, 64)])
def test_centre_is_that_of_the_resized_picture(rng, mode, size, resized):
    images = torch.randint(0, 256, (2, 3, 48, 48), dtype=torch.uint8, generator=rng)
    weights = centre_weights(48, size, resized, mode, torch.float32, torch.device("cpu"))[None]
    whole = F.resize(images.float(), [resized, resized], InterpolationMode(mode), antialias=True)
    expected = F.center_crop(whole, [size, size])
    torch.testing.assert_close(resample(images, weights, weights), expected, atol=3e-3, rtol=0)


def test_shifts_bring_a_black_border(rng):
    images = torch.randint(1, 256, (4, 3, 16, 16), dtype=torch.uint8, generator=rng)
    weights = centre_weights(16, 16, 16, "bilinear", torch.float32, torch.device("cpu"))
    dy, dx = torch.tensor([-3, 0, 2, 16]), torch.tensor([1, -16, 0, 3])
    moved = resample(images, shifted_weights(weights, dy), shifted_weights(weights, dx))
    bordered = torch.nn.functional.pad(images, (16, 16, 16, 16)).float()
    for image, crop, y, x in zip(bordered, moved, dy.tolist(), dx.tolist(), strict=True):
        torch.testing.assert_close(crop, image[:, 16 + y : 32 + y, 16 + x : 32 + x], atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("height", "width", "scale", "ratio"),
    [
        (256, 256, (0.08, 1.0), (3 / 4, 4 / 3)),
        (120, 400, (0.3, 1.0), (3 / 4, 4 / 3)),  # many draws do not fit
        (64, 256, (0.9, 1.0), (3 / 4, 4 / 3)),  # none does: the centre, bounded by the ratio
        (256, 64, (0.9, 1.0), (3 / 4, 4 / 3)),
        (20, 21, (0.99, 1.0), (0.2, 0.3)),
    ],
)
def test_boxes_are_distributed_as_torchvisions(rng, height, width, scale, ratio):
    ours = crop_boxes(4000, height, width, scale, ratio, rng).double().numpy()
    picture = torch.empty(1, height, width)
    torch.manual_seed(0)
    theirs = np.array([RandomResizedCrop.get_params(picture, list(scale), list(ratio)) for _ in range(4000)], float)
    for features in (lambda b: b[:, 2] * b[:, 3], lambda b: b[:, 3] / b[:, 2], lambda b: b[:, 0], lambda b: b[:, 1]):
        assert ks_2samp(features(ours), features(theirs)).pvalue > 0.01
    assert (ours[:, :2] >= 0).all()
    assert (ours[:, 0] + ours[:, 2] <= height).all()
    assert (ours[:, 1] + ours[:, 3] <= width).all()


@pytest.mark.parametrize(("height", "width", "empty"), [(32, 32, False), (12, 60, False), (1, 64, True)])
def test_erased_boxes_are_distributed_as_torchvisions(rng, height, width, empty):
    """It returns the whole picture where none of its draws is smaller, and puts it in its own place."""
    ours = erased_boxes(4000, height, width, rng).double().numpy()
    eraser, picture = RandomErasing(), torch.empty(1, height, width)
    torch.manual_seed(0)
    draws = [RandomErasing.get_params(picture, eraser.scale, eraser.ratio, [0.0])[:4] for _ in range(4000)]
    theirs = np.array([(0, 0, 0, 0) if box[2:] == (height, width) else box for box in draws], float)
    for features in (lambda b: b[:, 2], lambda b: b[:, 3], lambda b: b[:, 0], lambda b: b[:, 1]):
        assert ks_2samp(features(ours), features(theirs)).pvalue > 0.01
    assert (ours == 0).all() == empty
    assert (ours[:, 0] + ours[:, 2] <= height).all()
    assert (ours[:, 1] + ours[:, 3] <= width).all()


@pytest.mark.parametrize("largest", [(6, 9), (7, 9), (6, 10)])
def test_a_box_may_be_as_large_as_allowed(largest):
    boxes = _boxes(5, 6, 9, largest, (1.0, 1.0), (1.5, 1.5), torch.Generator().manual_seed(0))
    assert boxes.tolist() == [[0, 0, 6, 9]] * 5


def test_boxes_follow_from_the_generator():
    def draw(seed: int) -> torch.Tensor:
        return crop_boxes(50, 64, 64, (0.08, 1.0), (0.75, 1.5), torch.Generator().manual_seed(seed))

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


@pytest.mark.parametrize("mode", MODES)
def test_half_precision_costs_less_than_pils_rounding(images, mode):
    """PIL's two roundings to whole levels have a variance of 1/12 each."""
    whole, half = (
        resample(
            images, *(resample_weights(BOXES[:, k], BOXES[:, k + 2], n, 24, mode, dtype) for k, n in ((0, 48), (1, 64)))
        )
        for dtype in (torch.float32, torch.float16)
    )
    error = half.float() - whole
    assert error.abs().max() < 0.3
    assert error.square().mean() < 0.05 / 12


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
def test_cuda_takes_half_precision_whatever_autocast_says(images, mode):
    flips = torch.tensor([True, False] * 3)
    with torch.autocast("cuda", torch.bfloat16):
        half = crop_and_resize(images.cuda(), BOXES.cuda(), flips.cuda(), 24, mode)
    assert half.dtype == torch.float16
    error = half.float().cpu() - crop_and_resize(images, BOXES, flips, 24, mode)
    assert error.abs().max() < 0.3
    assert error.square().mean() < 0.05 / 12
