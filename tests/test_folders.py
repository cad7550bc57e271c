"""Folders of pictures without a recipe: what is held out, what is chosen, and runs from the command line."""

import numpy as np
import pytest
from PIL import Image

from opencrate import shipped
from opencrate.cli import main
from opencrate.data import Dataset
from opencrate.data.opening import open_pictures
from opencrate.folders import recipe_for
from opencrate.recipes import read_recipe


def write(folder, counts, size=(40, 30)):
    """A folder of plainly coloured pictures, so many for each class."""
    colours = {"blue": (0, 0, 200), "green": (0, 200, 0), "red": (200, 0, 0), "train": (90, 90, 90)}
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            noise = np.random.default_rng(i).integers(-40, 40, (size[1], size[0], 3))
            Image.fromarray((np.array(colours[name]) + noise).clip(0, 255).astype(np.uint8)).save(
                folder / name / f"{i}.jpg"
            )
    return folder


def names(data, training):
    pictures = open_pictures(data, training)
    return {file.removeprefix(data.root) for file in pictures.files}, pictures


def test_the_held_out_pictures_are_a_share_of_every_class(tmp_path):
    folder = write(tmp_path / "a", {"red": 20, "blue": 11, "green": 2})
    data = Dataset("folder", str(folder), train=".", num_classes=3, holdout=0.2)
    (training, kept), (held, validation) = names(data, True), names(data, False)
    assert training.isdisjoint(held)
    assert len(training | held) == 33
    assert kept.classes == validation.classes == ("blue", "green", "red")
    assert np.bincount(validation.targets).tolist() == [2, 1, 4]
    for pictures in (kept, validation):
        assert all(f"/{pictures.classes[t]}/" in f for t, f in zip(pictures.targets, pictures.files, strict=True))

    moved = folder.rename(tmp_path / "b")
    assert names(Dataset("folder", str(moved), train=".", num_classes=3, holdout=0.2), False)[0] == held
    other = Dataset("folder", str(moved), train=".", num_classes=3, holdout=0.2, holdout_seed=1)
    assert names(other, False)[0] != held


def test_pictures_that_are_added_move_few_others(tmp_path):
    folder = write(tmp_path, {"red": 50, "blue": 50})
    data = Dataset("folder", str(folder), train=".", num_classes=2, holdout=0.2)
    before = names(data, False)[0]
    for i in range(50, 60):
        (folder / "red" / f"{i}.jpg").write_bytes((folder / "red" / "0.jpg").read_bytes())
    assert len(before - names(data, False)[0]) <= 4


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"holdout": 1.0}, r"data.holdout must be in \[0, 1\)"),
        ({"name": "packed", "holdout": 0.2}, "data.holdout is for the dataset 'folder', and this one is 'packed'"),
    ],
)
def test_a_wrong_share_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        Dataset(**arguments)


def test_a_class_of_one_picture_is_refused(tmp_path):
    with pytest.raises(ValueError, match="class 'red' has a single picture, so none can be held out"):
        recipe_for(write(tmp_path, {"red": 1, "blue": 5}))


def test_what_is_there_decides(tmp_path):
    small = recipe_for(write(tmp_path / "small", {"red": 20, "blue": 20}))
    assert (small.model.name, small.data.size, small.data.num_classes) == ("crate_tiny_patch4_32", 32, 2)
    assert (small.data.train, small.data.holdout, small.optim.batch) == (".", 0.2, 8)
    photos = recipe_for(write(tmp_path / "photos", {"red": 60, "blue": 60, "green": 60}, size=(120, 90)))
    assert (photos.model.name, photos.data.size, photos.data.num_classes) == ("crate_tiny_patch8_64", 64, 3)
    assert photos.optim.batch == 16

    start = recipe_for(tmp_path / "photos", str(shipped.NETWORK))
    assert (start.model.start, start.model.name) == (str(shipped.NETWORK), "")
    assert start.data.size == 32  # the checkpoint's
    assert start.data.mean == pytest.approx((0.491, 0.482, 0.447))


@pytest.mark.parametrize(
    ("splits", "train", "holdout"),
    [(("train", "val"), "train", 0.0), (("train",), "train", 0.2), (("train", "red", "blue"), ".", 0.2)],
)
def test_which_folders_are_splits(tmp_path, splits, train, holdout):
    for split in splits:  # of a class "train", too
        if len(splits) < 3:
            write(tmp_path / split, {"red": 9, "blue": 9})
        else:
            write(tmp_path, {split: 9})
    data = recipe_for(tmp_path).data
    assert (data.train, data.holdout) == (train, holdout)
    assert data.num_classes == (3 if train == "." else 2)
    assert len(open_pictures(data, False).classes) == data.num_classes


def test_a_folder_is_trained_on_and_then_named(tmp_path, capsys):
    folder = write(tmp_path / "colours", {"red": 20, "blue": 20, "green": 20})
    out = tmp_path / "run"
    options = ["--out", str(out), "--schedule.epochs", "6", "--schedule.warmup-epochs", "1", "--workers", "0"]
    main(["finetune", str(folder), *options, "--device", "cpu", "--no-tensorboard", "--probe", "0"])
    printed, said = capsys.readouterr()
    assert f"{folder}: 3 classes; 20% of each class's pictures are held out for validation" in said
    assert "48 training and 12 validation pictures" in printed
    assert read_recipe(out / "recipe.yaml").name == "colours"
    write(tmp_path / "new", {"red": 1, "green": 1})
    main(["predict", str(tmp_path / "new"), "--model", str(out), "--top", "1"])
    printed = capsys.readouterr().out
    assert printed.split()[2:4] == ["%", "green"]
    assert printed.split()[-2:] == ["%", "red"]
    main(["eval", str(out)])
    assert "3 of the network's 3, matched by name" in capsys.readouterr().out


def test_a_recipe_goes_before_a_folder_of_its_name(tmp_path, monkeypatch, capsys):
    write(tmp_path / "digits", {"red": 9, "blue": 9})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["train", "digits", "--help"])
    assert "held out for validation" not in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "./digits", "--help"])
    assert "digits: 2 classes; 20% of each class's pictures" in capsys.readouterr().err
