"""The steps of the command: devices and jobs, datasets that cannot be read, documents that would lose results."""

import json
import math
import shutil
import struct
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from opencrate.data import pack_splits
from opencrate.data.datasets.pictures import Arrays
from opencrate.run_folder import RunFolder
from reproduction.command import Reproduction, _workers, reproduce


@pytest.mark.parametrize(
    ("settings", "gpus", "devices", "jobs"),
    [
        ({}, 3, ("cuda:0", "cuda:1", "cuda:2"), 1),
        ({"jobs": 2}, 1, ("cuda:0",), 2),
        ({"devices": ("cpu",), "jobs": 3}, 2, ("cpu",), 3),
        ({"processes": 8}, 8, ("auto",), 1),
        ({"processes": 2}, 0, ("auto",), 1),
    ],
)
def test_devices_and_runs_at_a_time(monkeypatch, settings, gpus, devices, jobs):
    """A run on several processes has all GPUs: eight workers with eight processes each would share them."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    found, at_a_time, threads = _workers(Reproduction(**settings))
    assert (found, at_a_time) == (devices, jobs)
    assert threads >= 1


def test_processes_choose_their_devices_themselves():
    with pytest.raises(ValueError, match=r"^--processes 2 chooses its devices itself; leave out --devices$"):
        _workers(Reproduction(processes=2, devices=("cpu",)))


def test_two_commands_do_not_share_a_folder(tmp_path):
    """Each would write its own results.json over the other's."""
    with RunFolder(tmp_path).locked(), pytest.raises(ValueError, match=f"^another run is using {tmp_path}"):
        reproduce(Reproduction(out=tmp_path))


@pytest.fixture
def published(tmp_path):
    """The project's own document, and its results as an `--out` has them."""
    docs = Path(__file__).parents[2] / "docs"
    shutil.copytree(docs / "results", tmp_path / "docs" / "results")
    shutil.copy(docs / "RESULTS.md", tmp_path / "docs")
    (tmp_path / "out").mkdir()
    shutil.copy(docs / "results/small/results.json", tmp_path / "out")
    return Reproduction(scale="small", out=tmp_path / "out", document=tmp_path / "docs", write_only=True)


def contents(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_document_is_not_written_over_by_one_with_less(published):
    """As with an `--out` that is new, or of a machine that did a part of the plan."""
    file = published.out / "results.json"
    results, before = json.loads(file.read_text()), contents(published.document)
    del results["rows"]["cifar-10/vit-t/strong/seed1"]
    file.write_text(json.dumps(results))
    with pytest.raises(
        ValueError, match=r"results\.json has 1 results that .* lacks, such as cifar-10/vit-t/strong/seed1;"
    ):
        reproduce(published)
    assert contents(published.document) == before


def test_a_document_is_not_written_over_by_one_of_another_scale(published, tmp_path):
    (tmp_path / "smoke").mkdir()
    (tmp_path / "smoke/results.json").write_text('{"scale": "smoke", "rows": {}}')
    before = contents(published.document)
    with pytest.raises(ValueError, match=r"RESULTS\.md is not of scale smoke; give another --document$"):
        reproduce(Reproduction(out=tmp_path / "smoke", document=published.document, write_only=True))
    assert contents(published.document) == before


def test_the_plan_says_what_is_done(published):
    lines = published.describe_plan().splitlines()
    done = json.loads((published.out / "results.json").read_text())["rows"]
    assert {line.split()[0] for line in lines[:-1] if line.endswith("  done")} == done.keys()
    assert lines[-1] == f"{len(lines) - 1} runs, of which {len(done)} are done"


def test_an_empty_folder_has_no_pictures(tmp_path):
    for name in ("cifar10", "fashion_mnist"):
        (tmp_path / name).mkdir()
    data = tuple(f"{name}={tmp_path / name}" for name in ("cifar10", "fashion_mnist"))
    with pytest.raises(
        ValueError, match=r"^\S+/cifar10 is missing or empty; give the folder of cifar10, --data cifar10=FOLDER$"
    ):
        reproduce(Reproduction(scale="small", data=data, out=tmp_path / "out"))
    (tmp_path / "cifar10" / "train").mkdir()
    with pytest.raises(ValueError, match=r"^\S+/fashion_mnist is missing or empty; give the folder of fashion_mnist"):
        reproduce(Reproduction(scale="small", data=data, out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            ("notes.txt",),
            r"^\S+cifar10 does not hold cifar10 as IDX files, a packed set, .* \(torchvision: ",
        ),
        (("train/cat/1.png",), r"^cifar10 cannot be read: \S+cifar10 has no folder 'validation' or "),
        (("train-images-idx4-ubyte",), r"^cifar10 cannot be read: "),
        (("train/index.json",), r"^cifar10 cannot be read: \S+/index\.json is not JSON that can be read: "),
    ],
    ids=["no form", "half of a folder", "an empty IDX file", "an empty index"],
)
def test_a_set_that_cannot_be_read_stops_the_plan_before_its_first_run(tmp_path, files, message):
    for file in files:
        (tmp_path / "cifar10" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cifar10" / file).touch()
    data = (f"cifar10={tmp_path / 'cifar10'}",)
    with pytest.raises(ValueError, match=message):
        reproduce(Reproduction(scale="small", data=data, out=tmp_path / "out", runs=("cifar-10/*",)))
    assert not (tmp_path / "out").exists()


def test_two_of_torchvisions_sets_in_one_folder_are_both_opened(tmp_path, monkeypatch):
    opened = []

    def open_pictures(data, training):
        opened.append((data.name, training))
        mode, side = ("L", 28) if data.name == "torch/fashion_mnist" else ("RGB", 32)
        images = np.array(Image.new(mode, (side, side), "red"))[None]
        return Arrays(images, np.zeros(1, int), ("0", "1"), "")

    monkeypatch.setattr("reproduction.command.open_pictures", open_pictures)
    (tmp_path / "notes.txt").touch()
    settings = Reproduction(scale="small", data=(f"cifar10={tmp_path}", f"fashion_mnist={tmp_path}"))
    settings.require_pictures(settings.plan())
    names = ("torch/cifar10", "torch/fashion_mnist")
    assert sorted(set(opened)) == sorted((name, training) for name in names for training in (True, False))


def test_packed_pictures_are_refused_where_a_run_varies_them_otherwise(tmp_path):
    squares = tmp_path / "pictures"
    for split, name in product(("train", "validation"), ("cat", "dog")):
        (squares / split / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(squares / split / name / "1.png")
    pack_splits(squares, tmp_path / "packed", side=8)
    for runs, sentence in ((("cifar-10/crate-t/light/*",), None), (("cifar-10/crate-t/strong/*",), "randaugment")):
        settings = Reproduction(scale="small", data=(f"cifar10={tmp_path / 'packed'}",), runs=runs)
        with pytest.raises(ValueError, match=f"^cifar10 .*{sentence}") if sentence else nullcontext():
            settings.require_pictures(settings.plan())


def test_what_is_wrong_is_told_without_options_that_the_command_lacks(tmp_path):
    for prefix in ("train", "t10k"):
        (tmp_path / f"{prefix}-images-idx3-ubyte").write_bytes(
            bytes([0, 0, 8, 3, *(0, 0, 0, 11), *(0, 0, 0, 1) * 2]) + bytes(11)
        )
        (tmp_path / f"{prefix}-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, *(0, 0, 0, 11), *range(11)]))
    settings = Reproduction(scale="small", data=(f"cifar10={tmp_path}",), runs=("cifar-10/*",))
    with pytest.raises(ValueError, match=r"^cifar10 cannot be read: \S+ has 11 classes but data.num_classes is 10$"):
        settings.require_pictures(settings.plan())


FASHION = ("T-shirt_top", "Trouser", "Pullover")


def as_folders(root, names, mode, side):
    for split, name in product(("train", "validation"), names):
        (root / split / name).mkdir(parents=True)
        Image.new(mode, (side, side), "red").save(root / split / name / "1.png")


def as_numbered_folders(root, names, mode, side):
    as_folders(root, map(str, range(len(names))), mode, side)


def as_numbered_and_packed(root, names, mode, side):
    as_numbered_folders(root.with_name("unpacked") / root.name, names, mode, side)
    pack_splits(root.with_name("unpacked") / root.name, root, 32)


def as_idx(root, names, mode, side):
    root.mkdir()
    shape = (len(names), side, side, *[3] * (mode == "RGB"))
    for prefix in ("train", "t10k"):
        head = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
        (root / f"{prefix}-images-idx{len(shape)}-ubyte").write_bytes(
            head + bytes(i % 251 for i in range(math.prod(shape)))
        )
        labels = bytes([0, 0, 8, 1]) + struct.pack(">I", len(names)) + bytes(range(len(names)))
        (root / f"{prefix}-labels-idx1-ubyte").write_bytes(labels)


@pytest.mark.parametrize("write", [as_folders, as_numbered_folders, as_numbered_and_packed, as_idx])
def test_swapped_sets_are_recognised(tmp_path, write):
    write(tmp_path / "cifar10", ("airplane", "cat", "frog"), "RGB", 32)
    write(tmp_path / "fashion_mnist", FASHION, "L", 28)
    names = ("cifar10", "fashion_mnist")
    for held in (names, names[::-1]):
        data = tuple(f"{name}={tmp_path / its}" for name, its in zip(names, held, strict=True))
        settings = Reproduction(scale="small", data=data, only=("table1",))
        is_right = held == names
        sentence = r"^cifar10 cannot be read: it holds another set: (cifar10 has no|the pictures of cifar10)"
        with nullcontext() if is_right else pytest.raises(ValueError, match=sentence):
            settings.require_pictures(settings.plan())
