import gzip
import hashlib
import importlib.util
import io
import logging
import os
import pickle
import re
import struct
import tracemalloc
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from opencrate.data import open_feeds
from opencrate.data.datasets.decoding import DecodeFailures, decode, with_channels
from opencrate.data.datasets.pictures import Arrays
from opencrate.data.opening import open_pictures, require_same_classes
from opencrate.data.settings import Augmentation, Dataset

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (12, 16, 3), np.uint8)


def settings(root: Path | str = "", name: str = "folder", **changes) -> Dataset:
    return Dataset(**{"name": name, "root": str(root), "num_classes": 10, "size": 8, **changes})


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def write(root: Path, classes: Sequence[str] = "ab", count: int = 2, kind: str = "png") -> Path:
    for label in classes:
        (root / label).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            Image.fromarray(PIXELS + np.uint8(i)).save(root / label / f"{i}.{kind}")
    return root


def refused(sentence: str):
    """A ValueError that says this and nothing more."""
    return pytest.raises(ValueError, match=f"^{re.escape(sentence)}$")


class TestDecode:
    def test_colour(self):
        np.testing.assert_array_equal(decode(encoded(Image.fromarray(PIXELS), "png")), PIXELS)

    def test_grey_for_a_colour_network_and_colour_for_a_grey_one(self):
        grey = PIXELS[..., 0]
        np.testing.assert_array_equal(decode(encoded(Image.fromarray(grey), "png")), np.stack([grey] * 3, -1))
        luma = decode(encoded(Image.fromarray(PIXELS), "png"), in_chans=1)
        np.testing.assert_allclose(luma, PIXELS @ [0.299, 0.587, 0.114], atol=0.51)  # ITU-R 601

    @pytest.mark.parametrize("in_chans", [1, 3])
    def test_of_sixteen_bits_the_upper_eight(self, in_chans):
        deep = np.arange(0, 2**16, 257, np.uint16).reshape(16, 16)  # 0, 0x0101, …, 0xffff
        image = decode(encoded(Image.fromarray(deep), "png"), in_chans)
        np.testing.assert_array_equal(np.asarray(image).reshape(16, 16, in_chans)[..., 0], deep // 256)

    def test_cmyk(self):
        """A JPEG of one colour: cyan is what is left of white without red."""
        image = decode(encoded(Image.new("CMYK", (16, 16), (255, 0, 0, 0)), "jpeg"))
        assert image.mode == "RGB"
        np.testing.assert_allclose(np.asarray(image), np.broadcast_to([0, 255, 255], (16, 16, 3)), atol=2)

    @pytest.mark.parametrize("transparency", [0, bytes(range(0, 256, 64))], ids=["one", "each"])
    def test_palette_with_transparency(self, transparency):
        palette = RNG.integers(0, 256, (4, 3), np.uint8)
        image = Image.fromarray(RNG.integers(0, 4, (8, 8), np.uint8), "L").convert("P")
        indices = np.asarray(image)
        image.putpalette(palette.tobytes())
        picture = decode(encoded(image, "png", transparency=transparency))
        np.testing.assert_array_equal(picture, palette[indices])

    def test_alpha_is_left_out(self):
        alpha = RNG.integers(0, 256, (12, 16, 1), np.uint8)
        np.testing.assert_array_equal(
            decode(encoded(Image.fromarray(np.concatenate([PIXELS, alpha], -1)), "png")), PIXELS
        )

    def test_an_animation_is_its_first_frame(self):
        frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
        picture = decode(encoded(frames[0], "gif", save_all=True, append_images=frames[1:]))
        assert picture.getcolors() == [(64, (255, 0, 0))]

    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            (b"", "it is empty"),
            (b"no picture at all", "it is not a picture, or damaged from the start"),
            (b"\x89PNG\r\n\x1a\n", "it is not a picture, or damaged from the start"),
            (b"<_io.BytesIO object", "it is not a picture, or damaged from the start"),
        ],
    )
    def test_what_is_no_picture(self, content, sentence):
        with refused(sentence):
            decode(content)

    @pytest.mark.parametrize("kind", ["jpeg", "png", "gif", "webp", "bmp", "tiff"])
    @pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
    def test_a_truncated_file_is_told_in_a_short_line(self, kind, share):
        content = encoded(Image.fromarray(RNG.integers(0, 256, (64, 64, 3), np.uint8)), kind)
        with pytest.raises(ValueError, match=r"^[^\n]{3,100}$") as error:
            decode(content[: int(share * len(content))])
        assert type(error.value) is ValueError
        assert "0x" not in str(error.value)

    def test_a_truncated_jpeg(self):
        content = encoded(Image.fromarray(PIXELS), "jpeg")
        with pytest.raises(ValueError, match=r"^image file is truncated \(\d+ bytes not processed\)$"):
            decode(content[:-50])

    @pytest.mark.parametrize("side", [60_000, 10_000, 8_000])
    def test_a_decompression_bomb(self, side):
        """A few bytes that declare so many pixels; Pillow itself only warns of 10,000 × 10,000."""
        header = struct.pack(">II5B", side, side, 8, 2, 0, 0, 0)
        chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
        content = b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
            for name, body in chunks
        )
        with refused("it has more than 62 million pixels"):
            decode(content)

    def test_a_small_tiff_of_a_huge_tile(self):
        """libtiff decodes the tile, a gigabyte, for a picture of 16 × 16."""
        tile = zlib.compress(b"")
        values = {256: 16, 257: 16, 258: 8, 259: 8, 262: 1, 277: 1, 322: 2**16, 323: 2**14, 324: 8, 325: len(tile)}
        entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in values.items())
        directory = struct.pack("<H", len(values)) + entries + bytes(4)
        with refused("it has more than 62 million pixels"):
            decode(b"II*\0" + struct.pack("<I", 8 + len(tile)) + tile + directory)

    def test_a_jpeg_of_many_scans(self):
        """Each costs as much as the whole picture: ten thousand of them would be decoded for a minute and a half."""
        content = encoded(Image.new("L", (2000, 2000)), "jpeg", progressive=True)
        scan = content[content.rindex(b"\xff\xda") : -2]
        assert decode(content).size == (2000, 2000)
        with refused("it is a JPEG of too many scans"):
            decode(content[:-2] + 10_000 * scan + content[-2:])

    def test_postscript_starts_no_program(self, tmp_path, monkeypatch):
        """Pillow would run `gs`, whatever the file's name says."""
        from PIL import EpsImagePlugin

        monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *given, **more: pytest.fail("started"))
        content = encoded(Image.fromarray(PIXELS), "eps")
        assert Image.open(io.BytesIO(content)).format == "EPS"
        with refused("it is not a picture, or damaged from the start"):
            decode(content)

    def test_a_file_that_is_too_large_is_not_read(self, tmp_path, monkeypatch):
        monkeypatch.setattr("opencrate.data.datasets.pictures.PICTURE_BYTES", 2**20)
        write(tmp_path / "train")
        pictures = open_pictures(settings(tmp_path), True)
        os.truncate(pictures.name(0), 2**20 + 1)
        with refused(f"{pictures.name(0)} is larger than 1 MiB"):
            pictures.picture(0)

    def test_damage_anywhere_is_a_value_error_or_a_picture(self, monkeypatch):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10**5)  # a damaged header may ask for a hundred million
        rng = np.random.default_rng(1)
        kinds = ("jpeg", "png", "gif", "webp", "bmp")
        whole = [np.frombuffer(encoded(Image.fromarray(PIXELS), kind), np.uint8) for kind in kinds]
        reasons = []
        for i in range(400):
            content = whole[i % len(whole)].copy()
            content[rng.integers(0, min(len(content), (60, 10**6)[i % 2]), 4)] = rng.integers(0, 256, 4)
            try:
                decode(content.tobytes())
            except ValueError as error:
                reasons.append(str(error))
        assert 50 < len(reasons) < 350
        assert all(re.fullmatch(r"[^\n]{3,160}", reason) and "0x" not in reason for reason in reasons)

    def test_with_channels_leaves_what_fits(self):
        image = Image.fromarray(PIXELS)
        assert with_channels(image, 3) is image


class TestDecodeFailures:
    def test_control_characters_and_length_stay_out(self, caplog):
        failures = DecodeFailures(0, 9)
        with pytest.raises(ValueError, match=r"^[ -~…]{1,300}$"):
            failures.add("a\x1b[2J" + "b" * 5000, "x\ny\x1b]0;" * 500)
        assert re.fullmatch(r"skipped a\\x1b\[2J[ -~…]{1,600}", caplog.messages[0])

    def test_names_each_once(self, caplog):
        failures = DecodeFailures(0.5, 4)
        for name in ("a.jpg", "b.jpg", "a.jpg"):
            failures.add(name, "truncated")
        assert len(failures) == 2
        assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
            (logging.WARNING, f"skipped {name}, which does not decode: truncated") for name in ("a.jpg", "b.jpg")
        ]

    def test_stops_above_the_share(self):
        failures = DecodeFailures(0.25, 8)
        failures.add("a.jpg", "truncated")
        failures.add("b.jpg", "truncated")
        with refused(
            "3 of 8 pictures do not decode, more than the fraction 0.25 that data.max_decode_failures allows;"
            " the last is c.jpg: it is empty"
        ):
            failures.add("c.jpg", "it is empty")

    def test_a_share_of_nothing_stops_at_the_first(self):
        with pytest.raises(ValueError, match=r"^1 of 1000 pictures do not decode"):
            DecodeFailures(0, 1000).add("a.jpg", "truncated")


class TestFolder:
    @pytest.mark.parametrize("validation", ["validation", "val", "valid", "test", "eval"])
    @pytest.mark.parametrize("kind", ["png", "jpg", "jpeg", "JPEG"])
    def test_classes_targets_and_names(self, tmp_path, validation, kind):
        write(tmp_path / "train", "abc", 3, kind)
        write(tmp_path / validation, "abc", 2, kind)
        (tmp_path / "train" / "notes.txt").write_text("not a picture")
        training, held_out = (open_pictures(settings(tmp_path), flag) for flag in (True, False))
        assert training.classes == held_out.classes == ("a", "b", "c")
        assert [len(training), len(held_out)] == [9, 6]
        for pictures, root in ((training, tmp_path / "train"), (held_out, tmp_path / validation)):
            names = [f"{root}/{label}/{i}.{kind}" for label in "abc" for i in range(len(pictures) // 3)]
            assert [pictures.name(i) for i in range(len(pictures))] == names
            assert [pictures.classes[pictures.targets[i]] for i in range(len(pictures))] == [
                Path(n).parent.name for n in names
            ]
        if kind == "png":
            np.testing.assert_array_equal(training.picture(4), PIXELS + np.uint8(1))

    def test_classes_are_in_the_order_of_their_names(self, tmp_path):
        """Numbers by value; names that differ by case alone (or zeros) in the same order everywhere."""
        labels = ["2", "10", "A", "a", "B", "b", "C", "c", "x1", "x01"]
        for label in labels:
            write(tmp_path / "train" / label, ".", 1)
        pictures = open_pictures(settings(tmp_path), True)
        assert pictures.classes == ("2", "10", "A", "a", "B", "b", "C", "c", "x01", "x1")
        for i in range(len(pictures)):
            assert pictures.classes[pictures.targets[i]] == Path(pictures.name(i)).parent.name

    def test_the_named_split_comes_first(self, tmp_path):
        for count, split in enumerate(("train", "val", "test"), 1):
            write(tmp_path / split, "ab", count)
        assert len(open_pictures(settings(tmp_path), False)) == 4
        assert len(open_pictures(settings(tmp_path, validation="test"), False)) == 6

    def test_files_that_do_not_decode(self, tmp_path):
        write(tmp_path / "train")
        (tmp_path / "train/a/0.png").write_bytes(b"")
        (tmp_path / "train/a/1.png").write_text("text")
        pictures = open_pictures(settings(tmp_path), True)
        (tmp_path / "train/b/0.png").unlink()
        for i, sentence in enumerate(("it is empty", "it is not a picture, or damaged from the start")):
            with refused(sentence):
                pictures.picture(i)
        with pytest.raises(OSError, match="No such file"):
            pictures.picture(2)

    def test_no_pictures(self, tmp_path):
        root = tmp_path / "data"
        with refused(f"{root} is not a folder: give the one with the pictures, --data.root FOLDER"):
            open_pictures(settings(root), True)
        root.mkdir()
        with refused(f"{root} has no folder 'train'"):
            open_pictures(settings(root), True)
        with refused(f"{root} has no folder 'val'"):
            open_pictures(settings(root, validation="val"), False)
        with refused(f"{root} has no folder 'held'"):
            open_pictures(settings(root, validation="held"), False)
        (root / "train").mkdir()
        with refused(f"no pictures were found in {root}/train: it is empty"):
            open_pictures(settings(root), True)
        (root / "train/a").mkdir()
        (root / "train/a/notes.txt").write_text("not a picture")
        with refused(f"no pictures were found in {root}/train, in a folder for each class"):
            open_pictures(settings(root), True)

    def test_pictures_beside_the_folders(self, tmp_path):
        """They have no class; timm would make one of them, without a name."""
        write(tmp_path / "train")
        Image.fromarray(PIXELS).save(tmp_path / "train/montage.png")
        with refused(f"{tmp_path}/train/montage.png is not in the folder of a class"):
            open_pictures(settings(tmp_path), True)

    def test_only_files_are_opened_and_links_in_a_circle_end(self, tmp_path):
        """timm's reader would list a pipe, which blocks whoever opens it, and walk two such links 2^40 times."""
        write(tmp_path / "train")
        os.mkfifo(tmp_path / "train/a/pipe.png")
        (tmp_path / "train/a/device.png").symlink_to("/dev/zero")
        (tmp_path / "train/a/broken.png").symlink_to(tmp_path / "nothing")
        for name in ("x", "y"):
            (tmp_path / "train/a" / name).symlink_to(tmp_path / "train")
        (tmp_path / "elsewhere").mkdir()
        Image.fromarray(PIXELS).save(tmp_path / "elsewhere/z.PNG")
        (tmp_path / "train/c").symlink_to(tmp_path / "elsewhere")
        pictures = open_pictures(settings(tmp_path), True)
        names = ["a/0.png", "a/1.png", "b/0.png", "b/1.png", "c/z.PNG"]
        assert [pictures.name(i) for i in range(len(pictures))] == [f"{tmp_path}/train/{name}" for name in names]
        assert pictures.targets.tolist() == [0, 0, 1, 1, 2]

    def test_control_characters_in_the_names_of_classes(self, tmp_path):
        write(tmp_path / "train", ["a\x1b[2J", "b\u202e"])
        assert open_pictures(settings(tmp_path), True).classes == ("a\\x1b[2J", "b\\u202e")

    def test_one_class(self, tmp_path):
        write(tmp_path / "train", "a")
        with refused(f"all pictures in {tmp_path} are of one class, a: a classifier needs at least two"):
            open_pictures(settings(tmp_path), True)

    def test_more_classes_than_the_recipe(self, tmp_path):
        write(tmp_path / "train", "abc", 1)
        with refused("folder has 3 classes but data.num_classes is 2: give --data.num-classes 3"):
            open_pictures(settings(tmp_path, num_classes=2), True)

    @pytest.mark.parametrize(
        ("training", "validation", "sentence"),
        [
            ("abc", "ab", "the validation split has no class 'c', which the training split has"),
            ("abcd", "ab", "the validation split has no class 'c' (nor 1 others), which the training split has"),
            ("ab", "abc", "the training split has no class 'c', which the validation split has"),
            ("ab", "abcde", "the training split has no class 'c' (nor 2 others), which the validation split has"),
        ],
    )
    def test_splits_of_other_classes(self, tmp_path, training, validation, sentence):
        write(tmp_path / "train", training, 1)
        write(tmp_path / "val", validation, 1)
        with refused(sentence):
            open_feeds(settings(tmp_path), Augmentation(crop="none"))

    def test_splits_of_the_same_classes(self):
        require_same_classes(("a", "b"), ("a", "b"))


def idx(values: np.ndarray) -> bytes:
    """MNIST's format, written by its description: two zeros, 8 for bytes, the number of axes, the axes, the values."""
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


class TestIdx:
    images = RNG.integers(0, 256, (6, 5, 4), np.uint8)
    targets = np.array([0, 1, 2, 2, 1, 0], np.uint8)

    def files(self, root: Path, zipped: bool, prefix: str = "train", **changes: np.ndarray) -> tuple[Path, Path]:
        contents = {"images-idx3": self.images, "labels-idx1": self.targets, **changes}
        if "images-idx4" in changes:
            del contents["images-idx3"]
        paths = []
        for kind, values in contents.items():
            file = root / f"{prefix}-{kind}-ubyte{'.gz' if zipped else ''}"
            file.write_bytes(gzip.compress(idx(values)) if zipped else idx(values))
            paths.append(file)
        return paths[0], paths[1]

    @pytest.mark.parametrize("zipped", [False, True])
    @pytest.mark.parametrize("training", [True, False])
    def test_both_forms(self, tmp_path, zipped, training):
        self.files(tmp_path, zipped, "train" if training else "t10k")
        pictures = open_pictures(settings(tmp_path, "idx"), training)
        assert pictures.classes == ("0", "1", "2")
        for i in range(6):
            np.testing.assert_array_equal(pictures.picture(i), self.images[i])
            assert pictures.targets[i] == self.targets[i]
        assert pictures.name(2) == f"{'train' if training else 't10k'}-images-idx3-ubyte picture 2"

    @pytest.mark.parametrize("zipped", [False, True])
    @pytest.mark.parametrize("prefix", ["train", "t10k"])
    def test_colour(self, tmp_path, zipped, prefix):
        images = RNG.integers(0, 256, (6, 5, 4, 3), np.uint8)
        self.files(tmp_path, zipped, prefix, **{"images-idx4": images})
        pictures = open_pictures(settings(tmp_path, "idx"), prefix == "train")
        for i in range(6):
            assert pictures.picture(i).mode == "RGB"
            np.testing.assert_array_equal(pictures.picture(i), images[i])
            assert pictures.targets[i] == self.targets[i]
        assert pictures.name(2) == f"{prefix}-images-idx4-ubyte picture 2"

    def test_colour_of_other_axes(self, tmp_path):
        self.files(tmp_path, False, **{"images-idx4": np.zeros((6, 5, 4, 2), np.uint8)})
        with refused(f"{tmp_path} holds pictures of 2 channels for train, where colour has 3"):
            open_pictures(settings(tmp_path, "idx"), True)
        self.files(tmp_path, False, **{"images-idx4": np.zeros((7, 5, 4, 3), np.uint8)})
        with refused(f"{tmp_path} holds 7 pictures and 6 classes for train"):
            open_pictures(settings(tmp_path, "idx"), True)
        self.files(tmp_path, False, **{"images-idx4": self.images})
        with refused(f"{tmp_path}/train-images-idx4-ubyte is damaged: its header is not that of 4 axes of bytes"):
            open_pictures(settings(tmp_path, "idx"), True)

    def test_names_of_the_classes(self, tmp_path):
        """One that no picture has is a class all the same."""
        self.files(tmp_path, False)
        (tmp_path / "classes.txt").write_text("cat\nsea lion \nlynx\n\nélan\n", "utf-8")
        assert open_pictures(settings(tmp_path, "idx"), True).classes == ("cat", "sea lion", "lynx", "élan")
        (tmp_path / "classes.txt").write_text("cat\ndog")
        with refused(f"{tmp_path}/classes.txt names 2 classes and the pictures have 3"):
            open_pictures(settings(tmp_path, "idx"), True)

    def test_missing(self, tmp_path):
        _, labels = self.files(tmp_path, False)
        labels.unlink()
        with refused(f"{tmp_path} holds neither train-labels-idx1-ubyte nor train-labels-idx1-ubyte.gz"):
            open_pictures(settings(tmp_path, "idx"), True)

    def test_counts_that_do_not_match(self, tmp_path):
        self.files(tmp_path, False, **{"labels-idx1": self.targets[:5]})
        with refused(f"{tmp_path} holds 6 pictures and 5 classes for train"):
            open_pictures(settings(tmp_path, "idx"), True)

    def test_no_pictures(self, tmp_path):
        self.files(tmp_path, False, **{"images-idx3": self.images[:0], "labels-idx1": self.targets[:0]})
        with refused(f"no pictures were found in {tmp_path}"):
            open_pictures(settings(tmp_path, "idx"), True)

    @pytest.mark.parametrize("zipped", [False, True])
    @pytest.mark.parametrize("length", [0, 2, 3, 4, 6, 16, 60])
    def test_truncated(self, tmp_path, zipped, length):
        images, _ = self.files(tmp_path, zipped)
        images.write_bytes(images.read_bytes()[:length])
        with pytest.raises(ValueError, match=f"^{re.escape(str(images))} is damaged: [^\n]+$"):
            open_pictures(settings(tmp_path, "idx"), True)

    def test_damaged_within(self, tmp_path):
        images, _ = self.files(tmp_path, True)
        content = bytearray(images.read_bytes())
        content[14:30] = b"\xff" * 16
        images.write_bytes(content)
        with pytest.raises(ValueError, match=f"^{re.escape(str(images))} is damaged: [^\n]+$"):
            open_pictures(settings(tmp_path, "idx"), True)

    @pytest.mark.parametrize("zipped", [False, True])
    @pytest.mark.parametrize(
        ("shape", "end"),
        [
            ((6, 5, 3), "its header says 90 bytes, and it holds more"),
            ((7, 5, 4), "its header says 140 bytes, and it holds 120"),
            ((6, 0, 4), "its header says 6 × 0 × 4 bytes, which it cannot hold"),
            ((2**32 - 1, 2**32 - 1, 2**32 - 1), None),
        ],
    )
    def test_a_header_that_does_not_agree(self, tmp_path, zipped, shape, end):
        """What it promises is not reserved, and never more than that is unpacked."""
        images, _ = self.files(tmp_path, False)
        content = struct.pack(">BBBB3I", 0, 0, 8, 3, *shape) + self.images.tobytes()
        images.unlink()
        images = tmp_path / f"{images.name}{'.gz' if zipped else ''}"
        images.write_bytes(gzip.compress(content) if zipped else content)
        huge = (
            "it holds more than 768 MiB: unpack it, with gunzip"
            if zipped
            else f"its header says {' × '.join(map(str, shape))} bytes, which it cannot hold"
        )
        if not zipped and end and " 140 " in end:
            end = "its header says 7 × 5 × 4 bytes, which it cannot hold"
        with refused(f"{images} is damaged: {end or huge}"):
            open_pictures(settings(tmp_path, "idx"), True)

    def test_a_bomb_is_not_unpacked(self, tmp_path):
        """250 KB hold 256 MiB of zeros behind a header of six pictures."""
        images, _ = self.files(tmp_path, True)
        images.write_bytes(gzip.compress(idx(self.images)) + gzip.compress(bytes(2**28), 1))
        tracemalloc.start()
        with refused(f"{images} is damaged: its header says 120 bytes, and it holds more"):
            open_pictures(settings(tmp_path, "idx"), True)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**23

    def test_names_that_are_no_text(self, tmp_path):
        self.files(tmp_path, False)
        (tmp_path / "classes.txt").write_bytes(b"caf\xe9\n" * 3)
        with refused(f"{tmp_path}/classes.txt is not a text in UTF-8"):
            open_pictures(settings(tmp_path, "idx"), True)

    def test_other_contents(self, tmp_path):
        images, labels = self.files(tmp_path, False)
        labels.write_bytes(images.read_bytes())
        with refused(f"{labels} is damaged: its header is not that of 1 axes of bytes"):
            open_pictures(settings(tmp_path, "idx"), True)


def write_cifar(root: Path, monkeypatch) -> tuple[np.ndarray, list[int]]:
    """CIFAR-10's layout with four pictures in each of its five parts and four to test; torchvision knows checksums."""
    from torchvision.datasets import CIFAR10

    folder = root / CIFAR10.base_folder
    folder.mkdir(parents=True)

    def part(name: str, content: dict) -> list[str]:
        (folder / name).write_bytes(pickle.dumps(content))
        return [name, hashlib.md5((folder / name).read_bytes()).hexdigest()]

    rows, targets = RNG.integers(0, 256, (24, 3072), np.uint8), RNG.integers(0, 10, 24).tolist()
    parts = [
        part(name, {"data": rows[4 * i : 4 * i + 4], "labels": targets[4 * i : 4 * i + 4]})
        for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"])
    ]
    meta = part("batches.meta", {"label_names": [f"class{i}" for i in range(10)]})
    monkeypatch.setattr(CIFAR10, "train_list", parts[:5])
    monkeypatch.setattr(CIFAR10, "test_list", parts[5:])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": meta[1]})
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), targets


class TestTorchvision:
    def test_cifar10(self, tmp_path, monkeypatch):
        images, targets = write_cifar(tmp_path, monkeypatch)
        for training, places, label in ((True, range(20), "train"), (False, range(20, 24), "test")):
            pictures = open_pictures(settings(tmp_path, "torch/cifar10"), training)
            assert pictures.classes == tuple(f"class{i}" for i in range(10))
            assert len(pictures) == len(places)
            for i, place in enumerate(places):
                np.testing.assert_array_equal(pictures.picture(i), images[place])
                assert pictures.targets[i] == targets[place]
            assert pictures.name(1) == f"torch/cifar10, {label}, picture 1"

    @pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
    def test_mnist(self, tmp_path, name, folder):
        raw = tmp_path / folder / "raw"
        raw.mkdir(parents=True)
        for prefix in ("train", "t10k"):
            TestIdx().files(raw, False, prefix)
        pictures = open_pictures(settings(tmp_path, f"torch/{name}"), True)
        assert (len(pictures), len(pictures.classes)) == (6, 10)
        np.testing.assert_array_equal(pictures.picture(5), TestIdx.images[5])
        assert [pictures.targets[i] for i in range(6)] == TestIdx.targets.tolist()

    def test_files_are_decoded_within_our_limits(self, tmp_path):
        """torchvision would open them in any format that Pillow knows."""
        root = tmp_path / "oxford-iiit-pet"
        (root / "images").mkdir(parents=True)
        (root / "annotations").mkdir()
        (root / "images/Abyssinian_1.jpg").write_bytes(encoded(Image.fromarray(PIXELS), "png"))
        (root / "images/beagle_7.jpg").write_bytes(encoded(Image.fromarray(PIXELS), "eps"))
        (root / "annotations/trainval.txt").write_text("Abyssinian_1 1 1 1\nbeagle_7 2 2 1\n")
        pictures = open_pictures(settings(tmp_path, "torch/pets"), True)
        assert (pictures.classes, pictures.targets.tolist()) == (("Abyssinian", "Beagle"), [0, 1])
        assert pictures.name(1) == str(root / "images/beagle_7.jpg")
        np.testing.assert_array_equal(pictures.picture(0), PIXELS)
        with refused("it is not a picture, or damaged from the start"):
            pictures.picture(1)

    def test_the_splits_of_imagenet(self, tmp_path, monkeypatch):
        """Its validation pictures are the split "val", where others say "test"."""
        opened = []

        def imagenet(root, split):
            opened.append((root, split))
            return SimpleNamespace(imgs=[("a.jpg", 0)], targets=[0], classes=[("tench", "Tinca tinca"), ("shark",)])

        monkeypatch.setattr("torchvision.datasets.ImageNet", imagenet)
        for training in (True, False):
            pictures = open_pictures(settings(tmp_path, "torch/imagenet", num_classes=2), training)
            assert pictures.classes == ("tench, Tinca tinca", "shark")
        assert opened == [(str(tmp_path), "train"), (str(tmp_path), "val")]

    @pytest.mark.parametrize(
        "name", ["cifar10", "cifar100", "mnist", "fashion_mnist", "flowers102", "pets", "imagenet"]
    )
    def test_absent(self, tmp_path, name):
        with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
            open_pictures(settings(tmp_path, f"torch/{name}", num_classes=1000), True)
        start = f"torchvision's {name} is not in {str(tmp_path)!r}: give its folder, --data.root FOLDER"
        assert str(error.value).startswith(f"{start} (torchvision says: ")

    def test_truncated(self, tmp_path):
        raw = tmp_path / "MNIST/raw"
        raw.mkdir(parents=True)
        for prefix in ("train", "t10k"):
            for file in TestIdx().files(raw, False, prefix):
                file.write_bytes(file.read_bytes()[:-3])
        with pytest.raises(ValueError, match=r"^torchvision's mnist is not in .*--data.root FOLDER[^\n]*$"):
            open_pictures(settings(tmp_path, "torch/mnist"), True)

    def test_a_missing_package(self, tmp_path, monkeypatch):
        from torchvision import datasets

        def needs_scipy(*arguments) -> None:
            raise ModuleNotFoundError("No module named 'scipy'", name="scipy")

        monkeypatch.setattr(datasets, "Flowers102", needs_scipy)
        with refused("torchvision's flowers102 needs the package 'scipy': pip install scipy"):
            open_pictures(settings(tmp_path, "torch/flowers102"), True)

    def test_unknown(self):
        with refused("unknown torchvision dataset 'cifra10'; did you mean 'cifar10'?"):
            open_pictures(settings(name="torch/cifra10"), True)


class FakeReader:
    """What timm's reader of Hugging Face datasets offers: a dataset by column, a column for the class, files."""

    label_key = "label"

    def __init__(self, labels: list[int], names: list[str] | None) -> None:
        self.labels, self.files = labels, list[io.BytesIO]()
        feature = SimpleNamespace(names=names) if names else SimpleNamespace()
        self.dataset = type("Columns", (dict,), {"features": {"label": feature}})(label=labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[io.BytesIO, int]:
        self.files.append(io.BytesIO(encoded(Image.fromarray(PIXELS + np.uint8(i)), "png")[: None if i else 60]))
        return self.files[-1], self.labels[i]


class TestHuggingFace:
    @pytest.mark.skipif(importlib.util.find_spec("datasets") is not None, reason="datasets is installed")
    def test_without_the_package(self):
        with refused("Hugging Face datasets need the package 'datasets': pip install 'opencrate[data]'"):
            open_pictures(settings(name="hfds/owner/name"), True)

    def test_pictures_without_a_class(self, monkeypatch):
        """The test split of many sets has the class −1."""
        monkeypatch.setattr("timm.data.readers.create_reader", lambda *given: FakeReader([-1, -1], ["cat", "dog"]))
        with refused("cache holds pictures of class -1, and it has 2 classes"):
            open_pictures(settings("cache", "hfds/owner/name"), False)

    @pytest.mark.parametrize("names", [["cat", "dog", "fish"], None])
    def test_through_timms_reader(self, monkeypatch, names):
        reader, asked = FakeReader([2, 0, 1, 2], names), []
        monkeypatch.setattr("timm.data.readers.create_reader", lambda *given: asked.append(given) or reader)
        pictures = open_pictures(settings("cache", "hfds/owner/name", validation="test"), False)
        assert asked == [("hfds/owner/name", "cache", "test")]
        assert pictures.classes == tuple(names or "012")
        assert (len(pictures), [pictures.targets[i] for i in range(4)]) == (4, [2, 0, 1, 2])
        np.testing.assert_array_equal(pictures.picture(3), PIXELS + np.uint8(3))
        assert pictures.name(3) == "hfds/owner/name, test, picture 3"
        with pytest.raises(ValueError, match=r"^[^\n]+$"):
            pictures.picture(0)
        assert all(file.closed for file in reader.files)

    @pytest.mark.parametrize("error", [FileNotFoundError("not on the hub"), ValueError("not on\nthe hub")])
    def test_what_does_not_open(self, monkeypatch, error):
        def fail(*given) -> None:
            raise error

        monkeypatch.setattr("timm.data.readers.create_reader", fail)
        with refused("hfds/owner/name, train, does not open: not on the hub"):
            open_pictures(settings(name="hfds/owner/name"), True)


def test_arrays():
    arrays = Arrays(np.stack([PIXELS] * 2), np.array([1, 0]), "ab", "made-up")
    np.testing.assert_array_equal(arrays.picture(1), PIXELS)
    assert (len(arrays), arrays.targets[0], arrays.name(1), arrays.classes) == (2, 1, "made-up picture 1", ("a", "b"))


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("digit", "did you mean 'digits'?"),
        ("folders", "did you mean 'folder'?"),
        ("folder/train", "did you mean 'folder'?"),
        ("torch/", "did you mean 'torch/NAME'?"),
        ("hfds", "did you mean 'hfds/NAME'?"),
        ("zzz", "known: digits, folder, hfds/NAME, idx, packed, torch/NAME, wds"),
    ],
)
def test_unknown_names_suggest_the_nearest(name, end):
    with refused(f"unknown dataset {name!r}; {end}"):
        open_pictures(settings(name=name), True)
