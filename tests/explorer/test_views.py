"""What the page is told: the very numbers of `analysis` and `measures`, to the precision they travel in."""

import base64
import copy
import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from opencrate import layerwise, save_pretrained
from opencrate.explorer import open_subject, views
from opencrate.explorer.subject import Variant
from opencrate.inspection.ablation import ablated
from opencrate.inspection.recording import record
from opencrate.inspection.views import attention_rows, coherent_patches, crop, top_patches
from opencrate.measures import DEFINITIONS
from opencrate.measures.geometry import coherence
from opencrate.stack import trajectory

from ..networks import small
from .files import noise


@pytest.fixture(scope="module")
def picture(subject):
    return subject.prepare(noise(7))


@pytest.fixture(scope="module")
def recording(subject, picture):
    return record(subject.model, picture.images)


def tokens(site: dict) -> np.ndarray:
    """What travelled: the bytes of a site."""
    return np.frombuffer(base64.b64decode(site["values"]), np.int8).reshape(site["shape"])


FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(arrays.arrays(np.float32, arrays.array_shapes(min_dims=2, max_dims=2, max_side=8), elements=FINITE | st.just(0)))
def test_bytes_are_zero_where_the_tokens_are(Z):
    site = views._bytes(torch.from_numpy(Z))
    sent, scale = tokens(site), site["scale"]
    assert np.array_equal(sent == 0, Z == 0)
    assert scale == np.abs(Z).max()
    assert np.array_equal(np.sign(sent), np.sign(Z))
    step = scale / 127
    error = np.abs(sent.astype(float) * step - Z)
    small = np.abs(Z) < step / 2  # of which those that are not zero become one
    assert (error[~small] <= 0.5001 * step).all()
    assert (error[small] <= step).all()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_tokens_that_are_not_finite_are_said(wrong):
    with pytest.raises(ValueError, match="not finite"):
        views._bytes(torch.tensor([[1.0, wrong]]))


def test_the_sites_are_the_trajectory(subject, picture, recording):
    steps = list(trajectory(subject.model, picture.images))
    expected = [("Z", steps[0].Z)]
    for step in steps:
        expected += [("Z_half", step.Z_half), ("Z_next", step.Z_next)]
    sites = views.look(recording, subject.study.class_name)["sites"]
    assert [site["name"] for site in sites] == [name for name, _ in expected]
    for site, (_, Z) in zip(sites, expected, strict=True):
        Z = Z[0].detach().numpy()
        assert np.abs(tokens(site) * site["scale"] / 127 - Z).max() <= site["scale"] / 127
        assert np.array_equal(tokens(site) == 0, Z == 0)


@pytest.mark.parametrize("network", ["this network", "untrained"])
def test_the_curves_are_layerwise(subject, picture, network):
    model = subject.network(network)
    curves = views.look(record(model, picture.images), subject.study.class_name)["curves"]
    for name in DEFINITIONS:
        rows = layerwise(model, picture.images, name).rows
        assert curves[name] == pytest.approx([row["Rc"] for row in rows], rel=1e-5)
        assert curves["nonzero"] == pytest.approx([row["nonzero"] for row in rows], rel=1e-5)


def told(look: dict) -> dict[int, float]:
    return {row["number"]: row["probability"] for row in look["prediction"]}


def test_the_prediction_is_the_softmax(subject, picture, recording):
    study = copy.copy(subject.study)
    study.classes = ("one", "two, the second")
    look = views.look(recording, study.class_name)
    with torch.no_grad():
        probabilities = subject.model(picture.images)[0].softmax(-1)
    assert told(look) == pytest.approx(dict(enumerate(probabilities.tolist())), rel=1e-5)
    assert list(told(look)) == probabilities.argsort(descending=True).tolist()
    names = {row["number"]: row["name"] for row in look["prediction"]}
    assert names == {0: "one", 1: "two", 2: "class 2", 3: "class 3", 4: "class 4"}


@pytest.mark.parametrize("token", [0, 1, 16])
def test_the_maps_are_the_attention(subject, picture, recording, token):
    found = views.attention(recording, token)
    rows = torch.stack([attention_rows(step, token)[0, :, 1:] for step in recording.steps])
    expected = rows.unflatten(-1, recording.grid).numpy()
    shares = np.frombuffer(base64.b64decode(found["maps"]), np.uint8).reshape(found["shape"])
    largest = np.array(found["largest"])[..., None, None]
    assert np.allclose(largest, expected.max((-1, -2), keepdims=True), rtol=1e-6)
    assert np.abs(shares / 255 - expected / largest).max() <= 0.501 / 255
    assert np.allclose(found["to_patches"], expected.sum((-1, -2)), rtol=1e-5)


@pytest.mark.parametrize(
    ("heads", "atoms"), [([(1, 2)], []), ([], [(2, 5)]), ([(1, 1), (1, 2), (3, 4)], [(1, 1), (3, 24)])]
)
def test_what_is_switched_off_is_ablated(subject, picture, recording, heads, atoms):
    without = subject.variant(Variant(heads=tuple(heads), atoms=tuple(atoms)))
    look = views.look(record(without, picture.images), subject.study.class_name)
    expected = ablated(subject.model, heads, atoms)(picture.images)[0].softmax(-1)
    assert told(look) == pytest.approx(dict(enumerate(expected.tolist())), rel=1e-5)
    assert told(look) != pytest.approx(told(views.look(recording, subject.study.class_name)), rel=1e-4)


def test_nothing_switched_off_is_the_network_itself(subject):
    assert subject.variant(Variant()) is subject.model


def test_a_head(subject, picture, recording):
    found = views.head(recording, 2, 3)
    step, layer = list(trajectory(subject.model, picture.images))[1], subject.model.blocks[1]
    V = (layer.compress.norm(step.Z)[0] @ layer.U[2]).detach().numpy()
    spectrum = np.linalg.svd(V, compute_uv=False)
    assert found["spectrum"] == pytest.approx((spectrum / spectrum[0]).tolist(), rel=1e-4)
    assert found["coherence"] == pytest.approx(coherence(layer.U)[2].tolist())
    grouped = coherent_patches(recording.steps[1], 3, views.PATCHES)
    assert found["grouped"] == [[patch // 4, patch % 4] for patch in grouped.patch]


def test_a_coordinate(subject, picture, recording):
    active = views.look(recording, subject.study.class_name)["sites"][-1]
    number = 1 + int(tokens(active).any(0).argmax())
    found = views.coordinate(recording, 3, number)
    steps = list(trajectory(subject.model, picture.images))
    assert found["activity"] == pytest.approx(steps[2].Z_next[0, :, number - 1].tolist(), rel=1e-6)
    column = subject.model.blocks[2].D[:, number - 1].detach().numpy()
    assert found["column"] == pytest.approx(column.tolist())
    assert found["norm"] == pytest.approx(np.linalg.norm(column), rel=1e-5)


@pytest.mark.parametrize("variant", [Variant(), Variant("untrained"), Variant(heads=((1, 2),), atoms=((2, 5),))])
def test_the_patches_of_the_reference_pictures(subject, variant):
    """All heads' and coordinates' from one pass: the same that a pass for each finds."""
    model = subject.variant(variant)
    recording = record(model, subject.reference.searched.images)
    layers = subject.reference.patches(variant, lambda: model)
    for layer, (best, step) in enumerate(zip(layers, recording.steps, strict=True), start=1):
        for kind, search, numbers in (("head", coherent_patches, 4), ("coordinate", top_patches, 24)):
            for number in range(1, numbers + 1):
                expected, found = search(step, number, views.PATCHES), best.patches(kind, number)
                assert (found.image, found.patch) == (expected.image, expected.patch)
                assert found.score == pytest.approx(expected.score, rel=1e-4)
                cut = subject.crops(variant, layer, kind, number)
                assert [patch["picture"] for patch in cut] == list(expected.image)


def test_the_patches_of_a_network_with_larger_patches(checkpoint, settings, tmp_path):
    other = str(save_pretrained(small(patch_size=8), tmp_path / "other"))
    subject = open_subject(checkpoint, replace(settings, against=other))
    step = record(subject.network(other), subject.reference.searched.images).steps[0]
    expected = crop(subject.reference.searched.shown, coherent_patches(step, 1, views.PATCHES), (8, 8), margin=1)
    cuts = subject.crops(Variant(other), 1, "head", 1)
    assert [cut["png"] for cut in cuts] == [views.png(np.ascontiguousarray(pixels)) for pixels in expected]


def test_a_picture_travels_as_it_is():
    pixels = np.asarray(noise())
    content = base64.b64decode(views.png(pixels).partition(",")[2])
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(content))), pixels)


def test_the_reference_is_the_mean(subject, settings):
    subject.measure_reference().join()
    batches = torch.cat(list(subject.study.batches()))
    assert subject.reference.means["samples"] == len(batches) == settings.samples
    for name in DEFINITIONS:
        rows = layerwise(subject.model, batches, name).rows
        assert subject.reference.means["curves"][name] == pytest.approx([row["Rc"] for row in rows], rel=1e-5)
        assert subject.reference.means["curves"]["nonzero"] == pytest.approx([row["nonzero"] for row in rows], rel=1e-5)
