"""Predictions, compared with torchvision's transforms and the network's softmax; what is drawn, pixel by pixel."""

import io
import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torchvision import transforms as T

import opencrate
from opencrate import shipped
from opencrate.cli import main
from opencrate.prediction import RED, REDNESS, UNSEEN, Prediction, predict

from .networks import small

CAT = shipped.PHOTOS / "01_cat.jpg"


def photo(width=90, height=60, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height // 10, width // 10, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def network():
    return opencrate.load(shipped.NETWORK).eval()


def by_hand(network, image):
    record = network.pretrained_cfg or {
        "input_size": (3, 16, 16),
        "crop_pct": 0.875,
        "mean": (0.5,) * 3,
        "std": (0.5,) * 3,
    }
    size = record["input_size"][-1]
    steps = [T.Resize(round(size / record["crop_pct"]), T.InterpolationMode.BICUBIC), T.CenterCrop(size), T.ToTensor()]
    return T.Compose([*steps, T.Normalize(record["mean"], record["std"])])(image)[None]


@torch.inference_mode()
def test_it_names_what_the_network_does(network):
    image = photo()
    prediction = opencrate.predict(image, top=3)
    expected = network(by_hand(network, image)).softmax(-1)[0].sort(descending=True)
    assert prediction.probabilities == pytest.approx(expected.values[:3].tolist(), abs=1e-5)
    names = network.pretrained_cfg["label_names"]
    assert prediction.classes == tuple(names[i] for i in expected.indices[:3].tolist())
    assert len(predict(image, network, top=1000).classes) == 10


@torch.inference_mode()
@pytest.mark.parametrize("pool", ["token", "avg"])
def test_where_it_looked_is_the_last_layers_attention(pool):
    model = small(global_pool=pool).eval()
    *_, last = opencrate.trajectory(model, by_hand(model, photo()))
    rows = last.maps[0, :, 0] if pool == "token" else last.maps[0].mean(1)
    expected = rows.mean(0)[1:].reshape(4, 4)
    np.testing.assert_allclose(predict(photo(), model).attention, expected / expected.sum(), rtol=1e-5)


def test_a_vit_looks_and_a_resnet_does_not():
    sizes = {"img_size": 16, "patch_size": 4, "num_classes": 5}
    vit = timm.create_model("vit_tiny_patch16_224", depth=2, embed_dim=24, **sizes).eval()
    prediction = predict(photo(), vit)
    assert prediction.attention.shape == (4, 4)
    assert prediction.attention.sum() == pytest.approx(1)
    assert set(prediction.classes) == {f"class {i}" for i in range(5)}
    prediction = predict(photo(), timm.create_model("resnet10t", num_classes=3).eval())  # a dozen convolutions
    assert prediction.attention is None
    with pytest.raises(ValueError, match="no attention maps"):
        prediction.overlay()


def test_files_arrays_and_pictures_are_the_same(network, tmp_path):
    photo().save(tmp_path / "x.png")
    expected = predict(photo(), network).probabilities
    for same in (tmp_path / "x.png", str(tmp_path / "x.png"), np.asarray(photo())):
        assert predict(same, network).probabilities == expected
    grey = photo().convert("L")
    assert predict(np.asarray(grey), network).probabilities == predict(grey, network).probabilities


def test_a_photo_on_its_side_is_turned_upright(network):
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6  # the camera was turned by a quarter
    photo().transpose(Image.Transpose.ROTATE_90).save(buffer, "PNG", exif=exif)
    prediction = predict(Image.open(buffer), network)
    assert prediction.picture.size == (90, 60)
    assert prediction.probabilities == predict(photo(), network).probabilities


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ({"image": np.zeros((4, 4), np.float32)}, "must be uint8"),
        ({"image": np.zeros((4, 4, 4), np.uint8)}, "must be uint8"),
        ({"top": 0}, "top must be a whole number, at least 1"),
        ({"model": small().train()}, "in training mode: call its eval"),
        ({"model": small(num_classes=0).eval()}, "has no classifier"),
        ({"model": "nowhere"}, "nowhere is not a run, a checkpoint or the name of a network"),
    ],
)
def test_what_is_wrong_is_a_sentence(argument, sentence):
    with pytest.raises(ValueError, match=sentence):
        predict(**{"image": photo(), **argument})


def drawn(attention, size=(90, 60), crop=60):
    box = ((size[0] - crop) // 2, (size[1] - crop) // 2, (size[0] + crop) // 2, (size[1] + crop) // 2)
    white = Image.new("RGB", size, "white")
    return np.asarray(Prediction(("a",), (1.0,), np.array(attention), white, box).overlay())


def test_the_overlay_is_red_where_it_looked_and_dark_where_it_could_not():
    pixels = drawn([[1.0, 0.0], [0.0, 0.0]])
    red = [round(REDNESS * part + (1 - REDNESS) * 255) for part in RED]
    np.testing.assert_allclose(pixels[2, 17], red, atol=2)
    assert (pixels[58, 73] > 250).all()  # it looked away
    assert (pixels[:, :15] == round(255 * UNSEEN)).all()  # beside the centre
    assert (pixels[:, 75:] == round(255 * UNSEEN)).all()


def test_attention_to_all_alike_is_pale_everywhere():
    pixels = drawn(np.full((3, 3), 1 / 9))[:, 15:75]
    assert (pixels == pixels[0, 0]).all()
    assert pixels[0, 0, 1] == pytest.approx(255 - (255 - RED[1]) * REDNESS / 3, abs=2)


def say(capsys, *arguments):
    """What the command prints, and says on stderr after the note about the network."""
    try:
        main(["predict", *map(str, arguments)])
        code = 0
    except SystemExit as stopped:
        code = stopped.code
    printed, said = capsys.readouterr()
    return code, printed, said.partition("CRATE-Tiny for CIFAR-10\n")[2] or said


def test_the_command_names_and_draws(capsys, tmp_path):
    code, printed, _ = say(capsys, CAT, "--top", 2, "--overlay", tmp_path / "cat.png")
    first, best, second, looked = printed.splitlines()
    assert (code, first, looked) == (0, str(CAT), f"  where it looked: {tmp_path / 'cat.png'}")
    assert best.endswith("%  cat")
    assert float(best.split()[0]) > float(second.split()[0])
    with Image.open(tmp_path / "cat.png") as drawn_on, Image.open(CAT) as original:
        assert drawn_on.size == original.size


def test_a_folder_and_a_file_that_is_none(capsys, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    photo().save(photos / "a.png")
    (photos / "b.jpg").write_text("no picture")
    photo(60, 90).save(photos / "c.jpg")
    code, printed, said = say(capsys, photos, tmp_path / "missing.png", "--json", "--overlay", tmp_path / "maps")
    lines = [json.loads(line) for line in printed.splitlines()]
    assert [line["file"] for line in lines] == [str(photos / "a.png"), str(photos / "c.jpg")]
    assert sorted(path.name for path in (tmp_path / "maps").iterdir()) == ["a.png", "c.png"]
    assert len(lines[0]["classes"]) == 5
    assert np.sum(lines[0]["attention"]) == pytest.approx(1, abs=1e-4)
    assert code == 2
    assert said.startswith(f"opencrate: {photos / 'b.jpg'} cannot be read as a picture: ")
    assert said.endswith("(and 1 more of 4 pictures)\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "name a picture, or a folder of pictures: opencrate predict PICTURE …"),
        ((CAT, CAT, "--overlay", "x.png"), "--overlay x.png is one file for 2 pictures: give a folder's name"),
        (
            (CAT, CAT, "--overlay", "x"),
            "several pictures have one name, so their drawings in x would be lost: name them apart",
        ),
        ((CAT, "--overlay", "x.pdf"), "--overlay x.pdf must end in .png, .jpg, .jpeg, .webp, or be a folder"),
    ],
)
def test_a_mistake_of_the_command_is_a_sentence(capsys, arguments, sentence):
    assert say(capsys, *arguments) == (2, "", f"opencrate: {sentence}\n")
