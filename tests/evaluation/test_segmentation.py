"""Segmentation that nobody trained for: against masks made up, SciPy's eigenvectors and attention computed by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import timm
import torch
from PIL import Image

from opencrate.cli import main
from opencrate.data.settings import Dataset
from opencrate.evaluation import segmentation
from opencrate.evaluation.segmentation import (
    LAYERS,
    METHODS,
    RULES,
    Examples,
    attention,
    centre,
    code,
    cut,
    intersection_over_union,
    read_examples,
    segment,
)
from opencrate.stack import trajectory

from ..networks import small
from ..strategies import random

DATA = Dataset(num_classes=2, size=16, crop_pct=1.0, mean=(0.5,) * 3, std=(0.5,) * 3)


def vit():
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=24, depth=4, num_heads=3, num_classes=2
    )
    return model.eval()


def test_intersection_over_union():
    mask = torch.tensor([[[1, 1, 0, 0]], [[0, 0, 0, 0]], [[0, 0, 0, 1]]], dtype=torch.bool)
    objects = torch.tensor([[[1, 0, 1, 0]], [[0, 0, 0, 0]], [[0, 0, 0, 0]]], dtype=torch.bool)
    counted = torch.tensor([[[1, 1, 1, 1]], [[1, 1, 1, 1]], [[1, 1, 1, 0]]], dtype=torch.bool)
    assert intersection_over_union(mask, objects, counted).tolist() == [pytest.approx(1 / 3), 1.0, 1.0]
    assert intersection_over_union(mask[:1], objects[:1], torch.tensor([[[1, 0, 1, 1]]]) > 0).item() == 0.5


def test_rules():
    pixels = torch.arange(100.0).view(1, 10, 10)[:, torch.randperm(10)]
    for rule in RULES:
        mask, (kind, value) = segmentation._masked(pixels, rule), rule
        if kind == "share":
            assert mask.sum() == round(100 * value)
            assert pixels[mask].min() > pixels[~mask].max()
        else:
            assert torch.equal(mask, pixels > pixels.mean() + value * pixels.std())


def test_the_cut_is_scipys(monkeypatch):
    """The generalised eigenvector, up to size, on tokens of two kinds; the kind along the border is not the object."""
    middle = torch.zeros(4, 4, dtype=torch.bool)
    middle[1:3, 1:4] = True
    kinds = torch.eye(6)[:2] * 3
    tokens = kinds[middle.flatten().long()] + 0.3 * random(5, 16, 6, seed=3).float()
    monkeypatch.setattr(segmentation, "_tokens", lambda *given: [tokens])
    scores = cut(small(), torch.zeros(5, 3, 16, 16))
    assert scores.shape == (5, 2, 4, 4)
    for picture, of_picture in zip(tokens, scores, strict=True):
        unit = torch.nn.functional.normalize(picture, dim=-1)
        cosines = (unit @ unit.mT).double().numpy()
        for least, score in zip((0.2, cosines.mean()), of_picture, strict=True):
            assert torch.equal(score > score.mean(), middle)
            W = np.where(cosines > least, 1.0, 1e-5)
            D = np.diag(W.sum(1))
            expected = torch.from_numpy(scipy.linalg.eigh(D - W, D)[1][:, 1]).float()
            cosine = torch.nn.functional.cosine_similarity(score.flatten(), expected, dim=0).abs()
            assert cosine == pytest.approx(1.0, abs=1e-3)


def test_attention_of_a_crate_is_its_maps():
    model, images = small(depth=4).eval(), random(2, 3, 16, 16).float()
    maps = torch.cat([step.maps for step in list(trajectory(model, images))[-LAYERS:]], 1)
    torch.testing.assert_close(attention(model, images).flatten(2), maps[:, :, 0, 1:])
    codes = torch.cat([step.code for step in list(trajectory(model, images))[-LAYERS:]], -1)
    torch.testing.assert_close(code(model, images).flatten(2), codes[:, 1:].mT)


@torch.no_grad()
def test_attention_of_a_vit_is_its_softmax():
    model, images = vit(), random(2, 3, 16, 16).float()
    found = attention(model, images)
    assert found.shape == (2, 3 * LAYERS, 4, 4)
    assert all(block.attn.fused_attn for block in model.blocks)  # as it was
    seen = []
    model.blocks[-1].attn.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    model(images)
    q, k, _ = model.blocks[-1].attn.qkv(seen[0]).unflatten(-1, (3, 3, 8)).permute(2, 0, 3, 1, 4)
    expected = (q @ k.mT / 8**0.5).softmax(-1)[:, :, 0, 1:]
    torch.testing.assert_close(found[:, -3:].flatten(2), expected)
    tokens = code(model, images)
    assert torch.equal(tokens[:, 72:], -tokens[:, :72])  # either sign


def test_a_network_without_maps_or_codes_says_so():
    with pytest.raises(ValueError, match="hands out no attention maps"):
        attention(timm.create_model("resnet18"), torch.zeros(1, 3, 32, 32))
    with pytest.raises(ValueError, match="hands out no code"):
        code(small(sparsify="none"), torch.zeros(1, 3, 16, 16))


def examples(count: int) -> Examples:
    """Objects of whole patches, two by two, somewhere; a column of pixels does not count."""
    objects = torch.zeros(count, 16, 16, dtype=torch.bool)
    for i in range(count):
        objects[i, 4 * (i % 3) : 4 * (i % 3) + 8, 4 * (i // 3 % 3) : 4 * (i // 3 % 3) + 8] = True
    counted = torch.ones_like(objects)
    counted[..., 5] = False
    return Examples(
        random(count, 3, 16, 16).float(), torch.zeros(count, 16, 16, 3, dtype=torch.uint8), objects, counted
    )


def test_what_is_best_on_pictures_for_choosing_is_measured_on_others(monkeypatch):
    """A candidate that knows the object is found among others; the centre is at its place for all."""
    objects = dict[bytes, torch.Tensor]()

    def knowing(network, images):
        patches = torch.stack([objects[image.numpy().tobytes()] for image in images])
        other = random(len(images), 4, 4, 4, seed=7).float()
        return torch.cat([other[:, :2], patches[:, None], other[:, 2:]], 1)

    choosing, validation = examples(9), examples(18)
    for part in (choosing, validation):
        for image, object_ in zip(part.images, part.objects, strict=True):
            patches = torch.nn.functional.avg_pool2d(object_[None].float(), 4)[0]
            objects[image.numpy().tobytes()] = patches
    monkeypatch.setattr(segmentation, "METHODS", {"code": knowing, "centre": centre})
    found, prior, grid = segment(small().eval(), choosing, validation, batch=4)
    assert found.choice.startswith("code 3 of 5, ")
    assert found.iou.shape == (18,)
    assert found.iou.mean() > 0.8 > prior.iou.mean()
    assert grid.iou.min() > found.iou.min() - 1e-6
    masks = intersection_over_union(found.masks, validation.objects, validation.counted)
    assert torch.equal(masks, found.iou)


def write_pets(folder: Path, count: int = 4) -> Path:
    """Bright squares on dark ground; a trimap says 1, 2 and, between them, 3."""
    for split in ("train", "validation"):
        for kind in ("cat", "dog"):
            for i in range(count):
                pixels, trimap = np.full((20, 20, 3), 30, np.uint8), np.full((20, 20), 2, np.uint8)
                pixels[4 + i : 14 + i, 5:15] = 220 if kind == "cat" else (220, 90, 30)
                trimap[3 + i : 15 + i, 4:16] = 3
                trimap[4 + i : 14 + i, 5:15] = 1
                for base, array, suffix in ((split, pixels, "jpg"), ("trimaps", trimap, "png")):
                    file = folder / base / kind / f"{split}_{i}.{suffix}"
                    file.parent.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(array).save(file)
    return folder


def test_masks_lie_where_pictures_do(tmp_path):
    write_pets(tmp_path)
    read = read_examples(tmp_path, "train", DATA, 0)
    assert len(read) == 8
    bright = read.shown.float().amax(-1) > 120
    assert bright[read.objects].float().mean() > 0.95  # resizing blurs the edge of a picture, and not that of a mask
    assert bright[read.counted & ~read.objects].float().mean() < 0.01
    assert 0 < (~read.counted).float().mean() < 0.3
    assert len(read_examples(tmp_path, "train", DATA, 3)) == 3
    half = read_examples(tmp_path, "train", Dataset(**{**vars(DATA), "crop_pct": 0.5}), 1)
    assert half.objects.shape == (1, 16, 16)
    assert half.objects.float().mean() > 0.8  # the centre; of the whole it is a quarter


def test_what_is_wrong_is_a_sentence(tmp_path, capsys):
    write_pets(tmp_path)
    mask = tmp_path / "trimaps/cat/train_0.png"
    Image.new("L", (5, 5)).save(mask)
    with pytest.raises(ValueError, match=r"train_0.png is not of its picture's size$"):
        read_examples(tmp_path, "train", DATA, 0)
    mask.unlink()
    with pytest.raises(ValueError, match=r"train_0.png is missing: a mask is needed for every picture$"):
        read_examples(tmp_path, "train", DATA, 0)
    with pytest.raises(SystemExit) as stopped:
        main(["segment", "--root", str(tmp_path / "nothing")])
    assert stopped.value.code == 2
    assert "nothing is not a folder" in capsys.readouterr().err


@pytest.mark.unhooked
def test_the_command(tmp_path, capsys):
    write_pets(tmp_path / "pets")
    command = [
        "segment",
        "--root",
        str(tmp_path / "pets"),
        "--choosing",
        "4",
        "--figure",
        str(tmp_path / "f/masks.png"),
    ]
    main(command)
    printed = capsys.readouterr().out
    for name in (*METHODS, "grid"):
        assert f" {name} " in printed
    assert "8 validation pictures" in printed
    assert max(map(len, printed.splitlines())) <= 110
    with Image.open(tmp_path / "f/masks.png") as figure:
        assert figure.width > 300
    main([*command, "--json", "--samples", "3"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["method"] for row in rows] == [*METHODS, "grid"]
    by = {row["method"]: row for row in rows}
    assert by["centre"]["above_centre"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    for row in rows:
        assert 0 <= row["iou"]["low"] <= row["iou"]["mean"] <= row["iou"]["high"] <= 1
        difference = row["iou"]["mean"] - by["centre"]["iou"]["mean"]
        assert row["above_centre"]["mean"] == pytest.approx(difference, abs=1e-6)
