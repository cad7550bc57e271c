import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from opencrate import trajectory
from opencrate.inspection.recording import record
from opencrate.inspection.views import Patches, attention_rows, coherent_patches, crop, pca_colours, top_patches

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
    with torch.no_grad():
        for step in trajectory(model, IMAGES):
            rows = attention_rows(step, token)
            assert rows.shape == (5, 4, 17)
            np.testing.assert_allclose(rows.numpy(), softmax_row(step.layer, step.Z, token)[1], rtol=1e-9)
            torch.testing.assert_close(
                rows, step.layer.compress.operator.maps(step.layer.compress.norm(step.Z))[:, :, token]
            )


def test_any_size_of_picture():
    model, images = small(dtype=torch.float64, dynamic_img_size=True, patch_size=(4, 2)), random(3, 3, 8, 20)
    recording = record(model, images)
    assert recording.grid == (2, 10)
    assert attention_rows(recording.steps[0], 20).shape == (3, 4, 1 + 2 * 10)
    assert max(coherent_patches(recording.steps[1], 1, count=100).patch) > 10
    assert len(top_patches(recording.steps[0], 1, count=100)) > 0


def test_a_recording_leaves_the_network_as_it_was():
    model = small(dtype=torch.float64)
    state = {name: weight.clone() for name, weight in model.state_dict().items()}
    recording = record(model, IMAGES)
    assert not any(step.Z_next.requires_grad for step in recording.steps)
    torch.testing.assert_close(recording.logits, model(IMAGES), rtol=1e-12, atol=1e-12)
    assert not attention_rows(recording.steps[0], 3).requires_grad
    coherent_patches(recording.steps[0], 1)
    assert all(torch.equal(weight, state[name]) for name, weight in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


def test_a_dead_head_looks_everywhere_and_has_no_patches():
    model = small(dtype=torch.float64)
    with torch.no_grad():
        model.blocks[1].compress.operator.UT[6:12] = 0  # head 2 of layer 2
    step = record(model, IMAGES).steps[1]
    torch.testing.assert_close(attention_rows(step, 0)[:, 1], torch.full((5, 17), 1 / 17, dtype=torch.float64))
    assert len(coherent_patches(step, head=2)) == 0
    assert crop(np.zeros((5, 16, 16, 3), np.uint8), coherent_patches(step, 2), (4, 4)) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    steps = record(small(dtype=torch.float64).to(dtype), IMAGES.to(dtype)).steps
    rows, exact = attention_rows(steps[0], 0), attention_rows(record(small(dtype=torch.float64), IMAGES).steps[0], 0)
    assert rows.dtype == torch.float32
    rounding = 30 * torch.finfo(dtype).eps
    torch.testing.assert_close(rows.double(), exact, rtol=rounding, atol=rounding)
    assert len(coherent_patches(steps[2], 4)) == 9
    assert len(top_patches(steps[0], 1)) > 0
    colours = pca_colours(steps[-1].Z_next)
    assert colours.dtype == torch.float32
    assert not colours.isnan().any()


def test_one_constant_picture():
    steps = record(small(), torch.zeros(1, 3, 16, 16)).steps
    assert not attention_rows(steps[0], 0).isnan().any()
    assert np.isfinite(coherent_patches(steps[0], 1).score).all()
    assert np.isfinite(top_patches(steps[0], 1).score).all()
    assert not pca_colours(steps[-1].Z_next).isnan().any()


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
    step = record(model, IMAGES).steps[1]
    V = softmax_row(step.layer, step.Z, 0)[0][:, 2, 1:]  # head 3, without the class token
    v = np.linalg.svd(V.reshape(-1, 6), full_matrices=False)[2][0]
    scores = V @ v  # (5, 16)
    v, scores = (v, scores) if (scores[scores > 0] ** 2).sum() > (scores[scores < 0] ** 2).sum() else (-v, -scores)
    found = coherent_patches(step, head=3, count=5)
    order = np.argsort(-scores.ravel())[:5]
    assert found.image == tuple(order // 16)
    assert found.patch == tuple(order % 16)
    assert found.score == pytest.approx(scores.ravel()[order], rel=1e-9)
    for image, patch, score in zip(found.image, found.patch, found.score, strict=True):
        projection = V[image, patch]
        length = np.linalg.norm(projection)
        assert score == pytest.approx(projection @ v / length * length)
    everywhere = coherent_patches(step, 3, count=1000)
    assert len(everywhere) == (scores > 0).sum() < 80


def test_coherent_patches_work_without_attention_maps():
    step = record(small(compress="gradient_step", dtype=torch.float64), IMAGES).steps[0]
    assert len(coherent_patches(step, 1)) == 9
    with pytest.raises(ValueError, match="the compression gradient_step has no attention maps"):
        attention_rows(step, 0)


def test_top_patches_against_numpy():
    step = record(small(dtype=torch.float64), IMAGES).steps[2]
    code = step.Z_next[:, 1:].numpy()
    active = (code > 0).sum((0, 1))
    j = int(np.argmin(np.where(active > 0, active, 99)))
    column = code[:, :, j].ravel()
    order = np.argsort(-column, kind="stable")[: active[j]]
    found = top_patches(step, coordinate=j + 1, count=80)
    assert len(found) == active[j] < 80
    assert found.image == tuple(order // 16)
    assert found.patch == tuple(order % 16)
    assert found.score == tuple(column[order])
    few = top_patches(step, coordinate=j + 1, count=1)
    assert few == Patches(found.image[:1], found.patch[:1], found.score[:1])


def test_equal_patches_come_in_order():
    model = small(dtype=torch.float64)
    with torch.no_grad():  # a product may round equal rows differently, unless its matrix is zero
        for weight in model.parameters():
            weight.mul_(weight.ndim == 1)
    step = record(model, torch.ones(2, 3, 16, 16, dtype=torch.float64)).steps[0]
    active = [j for j in range(1, 25) if len(top_patches(step, j))]
    found = top_patches(step, active[0], count=18)
    assert found.image == (0,) * 16 + (1,) * 2
    assert found.patch == (*range(16), 0, 1)


def test_crops():
    rows, columns = np.mgrid[:6, :8]
    images = np.stack([rows, columns, np.zeros_like(rows)], -1).astype(np.uint8)[None].repeat(2, 0)
    images[1, ..., 2] = 1
    patches = Patches((0, 1), (9, 3), (1.0, 0.5))  # of 3 × 4
    first, second = crop(images, patches, (2, 2))
    assert first.tolist() == [[[4, 2, 0], [4, 3, 0]], [[5, 2, 0], [5, 3, 0]]]
    assert second.tolist() == [[[0, 6, 1], [0, 7, 1]], [[1, 6, 1], [1, 7, 1]]]
    first, second = crop(images, patches, (2, 2), margin=1)
    assert first.shape == (4, 6, 3)  # cut off below
    assert first[0, 0].tolist() == [2, 0, 0]
    assert second.shape == (4, 4, 3)  # cut off above and to the right
    assert second[-1, 0].tolist() == [3, 4, 1]
    assert crop(images, Patches((0,), (3,), (1.0,)), (3, 4))[0][0, 0].tolist() == [3, 4, 0]


def test_what_is_out_of_range_is_one_sentence():
    step = record(small(dtype=torch.float64), IMAGES).steps[0]
    for number in (-1, 17):
        with pytest.raises(ValueError, match=f"token must be a whole number from 0 to 16, got {number}"):
            attention_rows(step, number)
    with pytest.raises(ValueError, match="head must be a whole number from 1 to 4, got 0"):
        coherent_patches(step, 0)
    with pytest.raises(ValueError, match="coordinate must be a whole number from 1 to 24, got 25"):
        top_patches(step, 25)
    with pytest.raises(ValueError, match="Z holds NaN or infinite values"):
        pca_colours(torch.full((1, 2, 3), torch.nan))
    broken = small(dtype=torch.float64)
    with torch.no_grad():
        broken.blocks[0].sparsify.operator.D.fill_(torch.nan)
    first, second, _ = record(broken, IMAGES).steps
    with pytest.raises(ValueError, match="the sparse code of layer 1 holds NaN"):
        top_patches(first, 1)
    with pytest.raises(ValueError, match="the projection of layer 2 holds NaN"):
        coherent_patches(second, 1)
    with pytest.raises(ValueError, match="the attention of layer 2 holds NaN"):
        attention_rows(second, 0)
