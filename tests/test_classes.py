"""Classes of a set and of a network are matched by name: rules, and the accuracy of a network that is known."""

import logging
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image

import opencrate
from opencrate.classes import class_names, imagenet, in_words, match_classes
from opencrate.cli import main
from opencrate.data import Dataset
from opencrate.evaluation import measure_checkpoint
from opencrate.report import analyze
from opencrate.run_recipe import patches_warning, require_size
from opencrate.settings import Analysis, Measuring
from opencrate.study import open_study
from tests.networks import small

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CODES, WORDS = imagenet()


# the rules


@pytest.mark.parametrize(
    ("given", "numbers"),
    [
        (CIFAR10, range(10)),
        (CIFAR10[::-1], range(9, -1, -1)),
        (("truck", "cat", "frog"), (9, 3, 6)),
        (("Truck", "CAT", " ship"), (9, 3, 8)),
    ],
    ids=["all", "other order", "some", "other case"],
)
def test_names(given, numbers):
    match = match_classes(CIFAR10, 10, given)
    assert match.numbers == tuple(numbers)
    assert str(match) == f"{len(given)} of the network's 10, matched by name"


def test_names_of_folders():
    known = ("T-shirt/top", "Ankle boot", "ice_cream")
    assert match_classes(known, 3, ("Ice cream", "T-shirt_top", "ankle-boot")).numbers == (2, 0, 1)


def test_names_that_differ_in_case_alone_are_told_apart():
    assert match_classes(("A", "a", "b"), 3, ("a", "b", "A")).numbers == (1, 2, 0)
    for given in (("B", "A"), ("a ", "b")):
        with pytest.raises(ValueError, match=r"^the network does not know \d of the set's 2|^the set's classes have"):
            match_classes(("A", "a", "b"), 3, given)


@pytest.mark.parametrize(
    ("names", "given", "how"),
    [
        (CIFAR10, tuple("0123456789"), "number, because the set has no names for its classes"),
        ((), CIFAR10, "number, because the network has no names for its classes"),
        ((), tuple("0123456789"), "number, because the network has no names for its classes"),
        (tuple("0123456789"), CIFAR10, "number, because the network has no names for its classes"),
        (tuple("0123456789"), tuple("0123456789"), "number"),
    ],
)
def test_as_many_without_names(names, given, how):
    match = match_classes(names, 10, given)
    assert (match.numbers, str(match)) == (tuple(range(10)), f"10 of the network's 10, matched by {how}")


@pytest.mark.parametrize(
    ("names", "given", "sentence"),
    [
        (CIFAR10, ("cat", "zebra", "yak"), "the network does not know 2 of the set's 3 classes, such as 'zebra': name"),
        (CIFAR10, tuple("01234"), "the set has 5 classes and the network 10, which cannot be matched because the set"),
        ((), ("cat", "dog"), "the set has 2 classes and the network 10, which cannot be matched because the network"),
        ((), tuple("01234"), "the set has 5 classes and the network 10, which cannot be matched because the network"),
        (CIFAR10, tuple(map(str, range(12))), "the set has 12 classes and the network 10, which cannot be matched"),
        (CIFAR10, ("x\x1b[31m" * 999, "cat"), "the network does not know 1 of the set's 2 classes, such as 'x"),
    ],
    ids=["other names", "fewer numbers", "a network without names", "no names at all", "more", "a hostile name"],
)
def test_what_cannot_be_matched_is_one_sentence(names, given, sentence):
    with pytest.raises(ValueError) as caught:  # noqa: PT011, compared below
        match_classes(names, 10, given)
    text = str(caught.value)
    assert text.startswith(sentence)
    assert len(text) <= 300
    assert text.isprintable()


def test_a_network_without_a_classifier():
    with pytest.raises(
        ValueError, match=r"^the network has no classifier, so only --knn and --linear can be measured$"
    ):
        match_classes((), 0, CIFAR10)


def test_imagenet_by_codes_and_by_words():
    """The authors' checkpoints have no names; folders have codes, and torchvision has words, two of them cranes."""
    some = (CODES[7], CODES[999], CODES[0])
    for names in ((), CODES, WORDS):
        assert match_classes(names, 1000, some).numbers == (7, 999, 0)
        assert match_classes(names, 1000, WORDS).numbers == tuple(range(1000))
    assert match_classes(CODES, 1000, CODES[::-1]).numbers == tuple(range(999, -1, -1))


def test_the_names_of_a_network():
    model = small()
    for record, names in (
        ({"label_names": list("abcde")}, tuple("abcde")),
        ({"label_names": list("abc")}, ()),
        ({"label_names": 5}, ()),
        ({}, ()),
    ):
        model.pretrained_cfg = record
        assert class_names(model) == names


# the accuracy of a network whose answers are known, on folders with some of its classes

PICTURES = np.random.default_rng(0).integers(0, 256, (10, 16, 16, 3), np.uint8)  # one for each class


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A random network whose classifier is fitted to the ten pictures' features, so that it knows each of them."""
    model = small(num_classes=10)
    with torch.no_grad():
        images = torch.from_numpy(PICTURES).permute(0, 3, 1, 2) / 127.5 - 1
        rows = model.forward_head(model.forward_features(images), pre_logits=True)
        model.head.weight.copy_(torch.linalg.lstsq(rows.double(), 8 * torch.eye(10).double()).solution.mT)
        model.head.bias.zero_()
    model.pretrained_cfg = {
        "architecture": "crate_tiny_patch4_32",
        "label_names": CIFAR10,
        "mean": (0.5,) * 3,
        "std": (0.5,) * 3,
        "crop_pct": 1.0,
    }
    return str(opencrate.save_pretrained(model, tmp_path_factory.mktemp("network") / "model"))


def write(root, names, wrong=(), rename=str):
    """A folder with two pictures of each class in both splits; for those of `wrong`, one is of the next class."""
    for name in names:
        number = CIFAR10.index(name) if name in CIFAR10 else 0
        for i, split in product(range(2), ("train", "validation")):
            (root / split / rename(name)).mkdir(parents=True, exist_ok=True)
            picture = PICTURES[(number + (i == 1 and name in wrong)) % 10]
            Image.fromarray(picture).save(root / split / rename(name) / f"{i}.png")
    return Dataset("folder", str(root), num_classes=10, size=16, mean=(0.5,) * 3, std=(0.5,) * 3, crop_pct=1.0)


def measuring(data, **changes):
    return Measuring(data, device="cpu", workers=0, layers=None, **changes)


@pytest.mark.parametrize("rename", [str, str.upper], ids=["names", "upper case"])
@pytest.mark.parametrize(
    ("names", "wrong", "top1"),
    [
        (CIFAR10, (), 100.0),
        (CIFAR10, ("cat", "dog"), 90.0),
        (("cat", "dog", "frog", "ship", "truck"), ("cat",), 90.0),  # by number: 0 %
        (("truck", "bird"), ("truck",), 75.0),
    ],
    ids=["all", "all, two wrong", "five of ten", "two of ten"],
)
def test_the_accuracy_is_that_of_the_names(checkpoint, tmp_path, names, wrong, top1, rename):
    measured = measure_checkpoint(checkpoint, measuring(write(tmp_path, names, wrong, rename)))
    assert measured["top1"] == top1
    assert measured["pictures"] == 2 * len(names)
    assert measured["classes"] == f"{len(names)} of the network's 10, matched by name"


def test_classes_that_the_network_does_not_know(checkpoint, tmp_path, capsys):
    """Refused, but for what needs no classifier."""
    data = write(tmp_path, ("cat", "zebra", "yak"))
    sentence = "the network does not know 2 of the set's 3 classes, such as 'yak'"
    with pytest.raises(ValueError, match=f"^{sentence}: name them as it does, for example 'airplane', or leave them"):
        measure_checkpoint(checkpoint, measuring(data))
    with pytest.raises(ValueError, match=f"^{sentence}"):
        measure_checkpoint(checkpoint, measuring(data, real=True, knn=1))
    measured = measure_checkpoint(checkpoint, measuring(data, knn=1, linear=True))
    assert measured.keys() == {"classes", "knn_1", "linear"}
    assert measured["knn_1"] >= 33.3
    assert sentence in measured["classes"]


def test_more_classes_than_the_network_has(checkpoint, tmp_path):
    """Those of --knn and --linear are the set's own, and may be as many as they are."""
    data = write(tmp_path, (*CIFAR10, "yak"))
    assert set(measure_checkpoint(checkpoint, measuring(data, knn=1))) == {"classes", "knn_1"}


def test_neighbours_are_compared_by_name(checkpoint, tmp_path):
    """The validation split has fewer classes than the training split, so that their numbers differ."""
    data = write(tmp_path, CIFAR10)
    for name in ("airplane", "bird", "dog"):
        for file in (tmp_path / "validation" / name).iterdir():
            file.unlink()
        (tmp_path / "validation" / name).rmdir()
    measured = measure_checkpoint(checkpoint, measuring(data, knn=1, linear=True))
    assert (measured["top1"], measured["knn_1"]) == (100.0, 100.0)
    assert measured["linear"] > 90


def test_eval_says_what_it_matched(checkpoint, tmp_path, capsys):
    write(tmp_path, ("truck", "bird"), ("truck",))
    options = ["--recipe", "cifar10_tiny", "--data.name", "folder", "--data.root", str(tmp_path), "--data.size", "16"]
    options += ["--data.mean", *["0.5"] * 3, "--data.std", *["0.5"] * 3]
    main(["eval", checkpoint, *options, "--device", "cpu", "--workers", "0", "--layers", "None"])
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["classes"] == "2 of the network's 10, matched by name"
    assert rows["pictures"] == "4"


def test_analyze_says_what_is_right_by_name(checkpoint, tmp_path):
    write(tmp_path / "set", ("truck", "bird"), ("truck",))
    settings = Analysis(data="folder", root=str(tmp_path / "set"), samples=4, device="cpu", only=("attention",))
    study = open_study(checkpoint, settings, torch.device("cpu"))
    assert [study.target(i) for i in range(4)] == [2, 2, 9, 9]
    page = analyze(checkpoint, replace(settings, out=tmp_path / "a")).read_text()
    assert "2 of the network&#39;s 10, matched by name" in page
    assert page.count(", correct") == 3
    assert page.count("wrong: it is truck") == 1


def test_analyze_of_other_classes_judges_no_prediction(checkpoint, tmp_path):
    write(tmp_path / "set", ("truck", "yak"))
    settings = Analysis(data="folder", root=str(tmp_path / "set"), samples=4, device="cpu", only=("attention",))
    page = analyze(checkpoint, replace(settings, out=tmp_path / "a")).read_text()
    assert "the network does not know 1 of the set&#39;s 2 classes" in page
    assert "predicted" in page
    assert ", correct" not in page


# very many patches


def test_a_network_with_very_many_more_patches_than_it_was_trained_on():
    sentence = patches_warning(small(img_size=32), 224)
    assert sentence.startswith(
        "the network gets 3,136 patches (224 pixels in patches of 4), where it was trained on 64, and its positions are"
    )
    assert len(sentence) <= 300
    assert patches_warning(small(img_size=32), 64) == ""
    assert patches_warning(small(img_size=32, patch_size=16), 224) != ""


def test_pictures_of_another_size(checkpoint, tmp_path, caplog):
    data = replace(write(tmp_path, CIFAR10[:2]), size=64)
    with pytest.raises(
        ValueError, match=r"^the network takes pictures of 16 × 16 pixels, and .*: give --data.size 16$"
    ):
        measure_checkpoint(checkpoint, measuring(data))
    with caplog.at_level(logging.WARNING):
        require_size(small(dynamic_img_size=True), 32)
        assert caplog.messages == []
        require_size(small(dynamic_img_size=True), 64)
    assert caplog.messages == [patches_warning(small(), 64)]


def test_wordnets_codes_in_words():
    assert in_words(("n01443537", "n04399382")) == (
        "goldfish, Carassius auratus",
        "teddy, teddy bear",
    )  # one of 1k alone
    assert in_words(("n00000000", "n01443537"))[0] == "n00000000"
    for names in ((), ("cat", "n01443537"), ("0", "1")):
        assert in_words(names) == names
