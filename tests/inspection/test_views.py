import numpy as np
import pytest
import timm
import torch
from sklearn.decomposition import PCA

from opencrate import trajectory
from opencrate.inspection import views
from opencrate.inspection.views import (
    Patches,
    attention_of,
    coherent_patches,
    crop,
    patch_token,
    pca_colours,
    top_patches,
)

from ..networks import small
from ..strategies import random

IMAGES = random(5, 3, 16, 16)


def softmax_row(layer, Z, token):
    """Row `token` of softmax(p^{-1/2} V_k V_kᵀ) for every sample and head, in NumPy."""
    norm = layer.compress.norm
    Y = Z.numpy()
    Y = (Y - Y.mean(-1, keepdims=True)) / np.sqrt(Y.var(-1, keepdims=True) + norm.eps)
    Y = Y * norm.weight.detach().numpy() + norm.bias.detach().numpy()
    V = np.einsum("bnd,kdp->bknp", Y, layer.U.detach().numpy())
    logits = np.einsum("bkp,bknp->bkn", V[:, :, token], V) * V.shape[-1] ** -0.5
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return V, weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize("attention", ["auto", "sdpa", "reference"])
@pytest.mark.parametrize("token", [0, 7])
def test_attention_is_the_row_of_the_softmax(attention, token):
    model = small(dtype=torch.float64, attention=attention)
    maps = attention_of(model, IMAGES, token)
    assert maps.shape == (3, 5, 4, 4, 4)
    with torch.no_grad():
        for found, step, layer in zip(maps, trajectory(model, IMAGES), model.blocks, strict=True):
            _, row = softmax_row(layer, step.Z, token)
            np.testing.assert_allclose(found.numpy(), row[..., 1:].reshape(5, 4, 4, 4), rtol=1e-9)
            np.testing.assert_allclose(1 - found.sum((-2, -1)).numpy(), row[..., 0], rtol=1e-8)
            torch.testing.assert_close(
                found.flatten(-2), layer.compress.operator.maps(layer.compress.norm(step.Z))[:, :, token, 1:]
            )
    chosen = attention_of(model, IMAGES, token, layers=[3, 1])
    assert torch.equal(chosen, maps[[2, 0]])


def test_any_size_of_picture(monkeypatch):
    model, images = small(dtype=torch.float64, dynamic_img_size=True, patch_size=(4, 2)), random(3, 3, 8, 20)
    maps = attention_of(model, images)
    assert maps.shape == (3, 3, 4, 2, 10)
    assert patch_token(model, images, 1, 9) == 20
    places = coherent_patches(model, images, 2, 1, count=100)
    assert max(places.row) == 1
    assert max(places.column) > 4
    monkeypatch.setattr(views, "TOGETHER", 2)
    torch.testing.assert_close(attention_of(model, images), maps)
    again = coherent_patches(model, images, 2, 1, count=100)
    assert (again.image, again.row, again.column) == (places.image, places.row, places.column)
    assert again.score == pytest.approx(places.score)
    assert len(top_patches(model, images, 1, 1, count=100)) > 0


@torch.no_grad()
def test_a_patch_is_the_token_that_sees_it():
    model, images = small(dtype=torch.float64, dynamic_img_size=True), IMAGES[:1, :, :8]
    changed = images.clone()
    changed[:, :, 4:8, 8:12] += random(1, 3, 4, 4, seed=1)
    moved = (model.embed(changed) != model.embed(images)).any(-1).nonzero()
    assert moved.tolist() == [[0, patch_token(model, images, 1, 2)]]


def test_the_network_is_left_as_it_was():
    model = small(drop_rate=0.5, attn_drop_rate=0.5, pos_drop_rate=0.5, dtype=torch.float64).train()
    model.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    state = {name: weight.clone() for name, weight in model.state_dict().items()}
    assert torch.equal(attention_of(model, IMAGES), attention_of(model, IMAGES))  # without dropout
    assert coherent_patches(model, IMAGES, 1, 1) == coherent_patches(model, IMAGES, 1, 1)
    assert top_patches(model, IMAGES, 3, 1) == top_patches(model, IMAGES, 3, 1)
    with pytest.raises(ValueError, match="token must be"):
        attention_of(model, IMAGES, token=17)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(weight, state[name]) for name, weight in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


def test_a_dead_head_looks_everywhere_and_has_no_patches():
    model = small(dtype=torch.float64)
    with torch.no_grad():
        model.blocks[1].compress.operator.UT[6:12] = 0  # head 2 of layer 2
    maps = attention_of(model, IMAGES)
    torch.testing.assert_close(maps[1, :, 1], torch.full((5, 4, 4), 1 / 17, dtype=torch.float64))
    assert not maps.isnan().any()
    assert len(coherent_patches(model, IMAGES, layer=2, head=2)) == 0
    assert crop(np.zeros((5, 16, 16, 3), np.uint8), coherent_patches(model, IMAGES, 2, 2), 4) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    model = small(dtype=torch.float64).to(dtype)
    maps, exact = attention_of(model, IMAGES), attention_of(small(dtype=torch.float64), IMAGES)
    assert maps.dtype == torch.float32
    rounding = 30 * torch.finfo(dtype).eps
    torch.testing.assert_close(maps[0].double(), exact[0], rtol=rounding, atol=rounding)
    assert len(coherent_patches(model, IMAGES, 3, 4)) == 9
    assert len(top_patches(model, IMAGES, 1, 1)) > 0
    *_, last = trajectory(model, IMAGES.to(dtype))
    colours = pca_colours(last.Z_next.detach())
    assert colours.dtype == torch.float32
    assert not colours.isnan().any()


def test_one_constant_picture():
    model, image = small(), torch.zeros(1, 3, 16, 16)
    assert not attention_of(model, image).isnan().any()
    assert np.isfinite(coherent_patches(model, image, 1, 1).score).all()
    assert np.isfinite(top_patches(model, image, 1, 1).score).all()
    *_, last = trajectory(model, image)
    assert not pca_colours(last.Z_next.detach()).isnan().any()


def test_colours_are_scikit_learns_components():
    Z = random(4, 30, 10) * torch.arange(10, 0, -1) + 5
    colours = pca_colours(Z)
    assert colours.shape == (4, 29, 3)
    components = PCA(3, svd_solver="full").fit_transform(Z[:, 1:].reshape(-1, 10).numpy())
    low, high = np.quantile(components, [0.01, 0.99], axis=0)
    expected = np.clip((components - low) / (high - low), 0, 1)
    np.testing.assert_allclose(colours.reshape(-1, 3).numpy(), expected, atol=1e-9)
    assert pca_colours(Z, first=0).shape == (4, 30, 3)
    assert pca_colours(Z[:, :, :2])[..., 2].unique().tolist() == [0.5]
    torch.testing.assert_close(pca_colours(Z.float()), colours.float(), atol=1e-5, rtol=0)


def test_colours_of_tokens_that_hardly_differ():
    same = random(1, 1, 6).expand(3, 11, 6)
    assert pca_colours(same).unique().tolist() == [0.5]
    assert pca_colours(torch.zeros(1, 2, 1)).tolist() == [[[0.5, 0.5, 0.5]]]
    line = random(200, seed=1)[:, None] * random(6, seed=2) + 3  # of one dimension
    colours = pca_colours(line[None], first=0)[0]
    assert colours[:, 1:].unique().tolist() == [0.5]
    assert {0.0, 1.0} <= set(colours[:, 0].tolist())
    one = same.reshape(1, 33, 6).repeat(1, 10, 1)
    one[0, 100] += torch.tensor([0.0, 0.0, 2.0, 0.0, 0.0, 0.0])  # below the quantiles, so these are equal
    expected = torch.zeros(329, dtype=torch.float64)
    expected[99] = 1
    torch.testing.assert_close(pca_colours(one)[0, :, 0], expected)
    noisy = one + 1e-12 * random(1, 330, 6, seed=3)
    torch.testing.assert_close(pca_colours(noisy)[0, :, 0], expected, rtol=0, atol=1e-9)


def test_coherent_patches_against_numpy():
    model = small(dtype=torch.float64)
    with torch.no_grad():
        step = list(trajectory(model, IMAGES))[1]
    V = softmax_row(model.blocks[1], step.Z, 0)[0][:, 2, 1:]  # head 3, without the class token
    v = np.linalg.svd(V.reshape(-1, 6), full_matrices=False)[2][0]
    scores = V @ v  # (5, 16)
    v, scores = (v, scores) if (scores[scores > 0] ** 2).sum() > (scores[scores < 0] ** 2).sum() else (-v, -scores)
    found = coherent_patches(model, IMAGES, layer=2, head=3, count=5)
    order = np.argsort(-scores.ravel())[:5]
    assert found.image == tuple(order // 16)
    assert found.row == tuple(order % 16 // 4)
    assert found.column == tuple(order % 4)
    assert found.score == pytest.approx(scores.ravel()[order], rel=1e-9)
    for image, row, column, score in zip(found.image, found.row, found.column, found.score, strict=True):
        projection = V[image, 4 * row + column]
        length = np.linalg.norm(projection)
        assert score == pytest.approx(projection @ v / length * length)
    everywhere = coherent_patches(model, IMAGES, 2, 3, count=1000)
    assert len(everywhere) == (scores > 0).sum() < 80


def test_coherent_patches_work_without_attention_maps():
    model = small(compress="gradient_step", dtype=torch.float64)
    assert len(coherent_patches(model, IMAGES, 1, 1)) == 9
    with torch.no_grad(), pytest.raises(ValueError, match="has no attention maps") as existing:
        next(trajectory(model, IMAGES, maps=True))
    with pytest.raises(ValueError, match="the compression gradient_step has no attention maps") as ours:
        attention_of(model, IMAGES)
    assert str(ours.value) == str(existing.value)


def test_top_patches_against_numpy():
    model = small(dtype=torch.float64)
    with torch.no_grad():
        code = list(trajectory(model, IMAGES))[2].Z_next[:, 1:].numpy()
    active = (code > 0).sum((0, 1))
    j = int(np.argmin(np.where(active > 0, active, 99)))
    column = code[:, :, j].ravel()
    order = np.argsort(-column, kind="stable")[: active[j]]
    found = top_patches(model, IMAGES, layer=3, coordinate=j + 1, count=80)
    assert len(found) == active[j] < 80
    assert found.image == tuple(order // 16)
    assert found.row == tuple(order % 16 // 4)
    assert found.column == tuple(order % 4)
    assert found.score == tuple(column[order])
    few = top_patches(model, IMAGES, layer=3, coordinate=j + 1, count=1)
    assert few == Patches(found.image[:1], found.row[:1], found.column[:1], found.score[:1])


def test_equal_patches_come_in_order():
    model = small(dtype=torch.float64)
    with torch.no_grad():  # a product may round equal rows differently, unless its matrix is zero
        for weight in model.parameters():
            weight.mul_(weight.ndim == 1)
    constant = torch.ones(2, 3, 16, 16, dtype=torch.float64)
    active = [j for j in range(1, 25) if len(top_patches(model, constant, 1, j))]
    found = top_patches(model, constant, 1, active[0], count=18)
    assert found.image == (0,) * 16 + (1,) * 2
    assert found.row[:8] == (0,) * 4 + (1,) * 4
    assert found.column[:8] == (0, 1, 2, 3) * 2


def test_crops():
    rows, columns = np.mgrid[:6, :8]
    images = np.stack([rows, columns, np.zeros_like(rows)], -1).astype(np.uint8)[None].repeat(2, 0)
    images[1, ..., 2] = 1
    patches = Patches((0, 1), (2, 0), (1, 3), (1.0, 0.5))
    first, second = crop(images, patches, 2)
    assert first.tolist() == [[[4, 2, 0], [4, 3, 0]], [[5, 2, 0], [5, 3, 0]]]
    assert second.tolist() == [[[0, 6, 1], [0, 7, 1]], [[1, 6, 1], [1, 7, 1]]]
    first, second = crop(images, patches, 2, margin=1)
    assert first.shape == (4, 6, 3)  # cut off below
    assert first[0, 0].tolist() == [2, 0, 0]
    assert second.shape == (4, 4, 3)  # cut off above and to the right
    assert second[-1, 0].tolist() == [3, 4, 1]
    assert crop(images, Patches((0,), (1,), (1,), (1.0,)), (3, 4))[0][0, 0].tolist() == [3, 4, 0]
    with pytest.raises(ValueError, match=r"patch \(2, 1\) of picture 0 lies outside: there are 2 pictures of 1 x 2"):
        crop(images, patches, 4)
    with pytest.raises(ValueError, match="images must be uint8 of axes"):
        crop(images / 255, patches, 2)
    with pytest.raises(ValueError, match="margin must not be negative, got -1"):
        crop(images, patches, 2, -1)
    with pytest.raises(ValueError, match="patch_size must be at least 1"):
        crop(images, patches, 0)


def test_what_is_out_of_range_is_one_sentence():
    model = small(dtype=torch.float64)
    with pytest.raises(ValueError, match="layer must be a whole number from 1 to 3, got 0"):
        attention_of(model, IMAGES, layers=[1, 0])
    with pytest.raises(ValueError, match="layers is empty"):
        attention_of(model, IMAGES, layers=[])
    with pytest.raises(ValueError, match="token must be a whole number from 0 to 16, got -1"):
        attention_of(model, IMAGES, -1)
    with pytest.raises(ValueError, match="row must be a whole number from 0 to 3, got 4"):
        patch_token(model, IMAGES, 4, 0)
    with pytest.raises(ValueError, match="column must be a whole number from 0 to 3, got -1"):
        patch_token(model, IMAGES, 0, -1)
    with pytest.raises(ValueError, match="layer must be a whole number from 1 to 3, got 4"):
        coherent_patches(model, IMAGES, 4, 1)
    with pytest.raises(ValueError, match="head must be a whole number from 1 to 4, got 0"):
        coherent_patches(model, IMAGES, 1, 0)
    with pytest.raises(ValueError, match="coordinate must be a whole number from 1 to 24, got 25"):
        top_patches(model, IMAGES, 1, 25)
    with pytest.raises(ValueError, match="count must be a whole number, at least 1, got 0"):
        top_patches(model, IMAGES, 1, 1, count=0)
    with pytest.raises(ValueError, match="no pictures"):
        attention_of(model, IMAGES[:0])
    with pytest.raises(ValueError, match="images of 8 x 16 pixels, but the model takes 16 x 16"):
        attention_of(model, IMAGES[:, :, :8])
    with pytest.raises(ValueError, match="with n > first = 17"):
        pca_colours(model.embed(IMAGES), first=17)
    with pytest.raises(ValueError, match="Z holds NaN or infinite values"):
        pca_colours(torch.full((1, 2, 3), torch.nan))
    broken = small(dtype=torch.float64)
    with torch.no_grad():
        broken.blocks[0].sparsify.operator.D.fill_(torch.nan)
    with pytest.raises(ValueError, match="the sparse code of layer 1 holds NaN"):
        top_patches(broken, IMAGES, 1, 1)
    with pytest.raises(ValueError, match="the projection of layer 2 holds NaN"):
        coherent_patches(broken, IMAGES, 2, 1)
    with pytest.raises(ValueError, match="the attention of layer 2 holds NaN"):
        attention_of(broken, IMAGES)


@pytest.mark.unhooked
def test_a_network_that_is_no_crate():
    vit = timm.create_model("vit_tiny_patch16_224", depth=1, num_classes=0)
    for view in (attention_of, lambda *args: patch_token(*args, 0, 0), lambda *args: top_patches(*args, 1, 1)):
        with pytest.raises(ValueError, match="only a CRATE can be looked into, got VisionTransformer"):
            view(vit, IMAGES)
