"""Numbered pictures from several kinds of source: arrays, folders, torchvision, Hugging Face, IDX files."""

import gzip
import hashlib
import math
import os
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from ...errors import one_line, shown, suggestion
from ...files import NAMES_BYTES, PICTURE_BYTES, UNZIPPED_BYTES, read_bytes
from ..settings import Dataset
from .decoding import decode, error_text

MOST_ZIPPED = 1040  # bytes that gzip can make of one


class Pictures(ABC):
    """A split: the names of its classes, and of picture i its class targets[i], its name and its pixels."""

    classes: tuple[str, ...]
    targets: np.ndarray
    label: str  # the set, in the names of its pictures

    def __len__(self) -> int:
        return len(self.targets)

    @abstractmethod
    def picture(self, i: int) -> Image.Image:
        """Picture i; OSError or ValueError if it does not decode."""

    def name(self, i: int) -> str:
        return f"{self.label} picture {i}"


class Arrays(Pictures):
    """Pictures in memory: uint8 (n, H, W) or (n, H, W, 3)."""

    def __init__(self, images: np.ndarray, targets: np.ndarray, classes: Iterable[str], label: str) -> None:
        self.images, self.targets, self.classes, self.label = images, targets, tuple(classes), label
        self.shape = images.shape[1:]

    def picture(self, i: int) -> Image.Image:
        return Image.fromarray(self.images[i])


class Files(Pictures):
    """Pictures in files, which are their names."""

    def __init__(self, files: Sequence[str], targets: np.ndarray, classes: tuple[str, ...], in_chans: int) -> None:
        self.files, self.targets, self.classes, self.in_chans = files, targets, classes, in_chans

    def picture(self, i: int) -> Image.Image:
        return decode(read_bytes(Path(self.files[i]), PICTURE_BYTES), self.in_chans)

    def name(self, i: int) -> str:
        return self.files[i]


class Folder(Files):
    """Files in one folder for each class, in the order of timm's reader."""

    def __init__(self, directory: Path, in_chans: int) -> None:
        from timm.utils.misc import natural_key

        if not any(directory.iterdir()):
            raise ValueError(f"no pictures were found in {directory}: it is empty")
        files = sorted(_picture_files(directory), key=lambda file: (natural_key(file), file))
        if not files:
            raise ValueError(f"no pictures were found in {directory}, in a folder for each class")
        if stray := next((file for file in files if Path(file).parent == directory), None):
            raise ValueError(f"{one_line(stray)} is not in the folder of a class")
        labels = [Path(file).parent.name for file in files]
        # timm's order ignores case and leading zeros, and the order of A and a differs between processes
        classes = tuple(sorted(set(labels), key=lambda name: (natural_key(name), name)))
        number = {name: i for i, name in enumerate(classes)}
        super().__init__(files, np.array([number[label] for label in labels]), classes, in_chans)


def held_out(pictures: Files, data: Dataset, training: bool) -> Files:
    """The pictures of a folder for training, or those held out: of each class the share with the least hash values.

    A hash is of the seed, the class and the file's name. So the choice does not depend on where the folder is, and
    pictures that are added later move few of the others.
    """

    def key(i: int) -> bytes:
        name = f"{data.holdout_seed}/{pictures.classes[pictures.targets[i]]}/{Path(pictures.files[i]).name}"
        return hashlib.blake2b(name.encode(errors="surrogateescape")).digest()

    chosen = []
    for target, name in enumerate(pictures.classes):
        numbers = sorted(np.flatnonzero(pictures.targets == target).tolist(), key=key)
        if len(numbers) < 2:
            raise ValueError(
                f"class {shown(name)} has a single picture, so none can be held out for validation: add one, or leave"
                " the class out"
            )
        count = min(max(1, round(data.holdout * len(numbers))), len(numbers) - 1)
        chosen += numbers[count:] if training else numbers[:count]
    chosen.sort()
    files = [pictures.files[i] for i in chosen]
    return Files(files, pictures.targets[chosen], pictures.classes, pictures.in_chans)


def _picture_files(directory: Path) -> Iterator[str]:
    """The pictures in a folder and below, as timm finds them, but of links to a folder only the first."""
    from timm.data.readers.img_extensions import get_img_extensions

    extensions = tuple(get_img_extensions())
    folders, known = [str(directory)], set[tuple[int, int]]()
    while folders:
        folder = folders.pop()
        status = Path(folder).stat()
        if (identity := (status.st_dev, status.st_ino)) in known:
            continue
        known.add(identity)
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name, reverse=True):
                if entry.is_dir():
                    folders.append(entry.path)
                elif entry.name.lower().endswith(extensions) and entry.is_file():  # neither a pipe nor a device
                    yield entry.path


class HuggingFace(Pictures):
    """A Hugging Face dataset, through timm's reader."""

    def __init__(self, name: str, root: str, split: str, in_chans: int) -> None:
        try:
            from timm.data.readers import create_reader

            self.reader = create_reader(f"hfds/{name}", root or None, split)
        except ImportError as error:
            raise ValueError(
                "Hugging Face datasets need the package 'datasets': pip install 'opencrate[data]'"
            ) from error
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(f"hfds/{name}, {split}, does not open: {error_text(error)}") from error
        self.label, self.in_chans = f"hfds/{name}, {split},", in_chans
        features = self.reader.dataset.features[self.reader.label_key]
        self.targets = np.asarray(self.reader.dataset[self.reader.label_key])
        self.classes = tuple(getattr(features, "names", None) or _numbers(self.targets))

    def picture(self, i: int) -> Image.Image:
        with self.reader[i][0] as file:
            return decode(file.read(), self.in_chans)


def _numbers(targets: np.ndarray) -> list[str]:
    """Names for classes that have none."""
    return [str(i) for i in range(int(targets.max(initial=0)) + 1)]


def open_torchvision(name: str, root: str, split: str, in_chans: int) -> Pictures:
    """A torchvision dataset on disk, of which its arrays, or the names of its files, are taken."""
    dataset = _torchvision(name, root, split)
    targets = np.asarray(dataset.targets if hasattr(dataset, "targets") else dataset._labels)
    classes = tuple(name if isinstance(name, str) else ", ".join(name) for name in dataset.classes)
    contents = (getattr(dataset, name, None) for name in ("data", "imgs", "_image_files", "_images"))
    content = next(content for content in contents if content is not None)
    if isinstance(content, np.ndarray):
        return Arrays(content, targets, classes, f"torch/{name}, {split},")
    return Files([str(file[0] if isinstance(file, tuple) else file) for file in content], targets, classes, in_chans)


def _torchvision(name: str, root: str, split: str) -> Any:
    from torchvision import datasets

    def idx(kind: Any) -> SimpleNamespace:
        """A set in MNIST's format, which torchvision reads without limits."""
        arrays = read_idx(Path(root).expanduser() / kind.__name__ / "raw", train)
        return SimpleNamespace(data=arrays.images, targets=arrays.targets, classes=kind.classes)

    train, evaluated = split == "train", "train" if split == "train" else "val"
    builders: dict[str, Any] = {
        "cifar10": lambda: datasets.CIFAR10(root, train),
        "cifar100": lambda: datasets.CIFAR100(root, train),
        "mnist": lambda: idx(datasets.MNIST),
        "fashion_mnist": lambda: idx(datasets.FashionMNIST),
        "flowers102": lambda: datasets.Flowers102(root, split),
        "pets": lambda: datasets.OxfordIIITPet(root, "trainval" if train else "test"),
        "imagenet": lambda: datasets.ImageNet(root, evaluated),
    }
    if name not in builders:
        raise ValueError(f"unknown torchvision dataset {shown(name)}{suggestion(name, builders)}")
    try:
        return builders[name]()
    except ImportError as error:
        raise ValueError(f"torchvision's {name} needs the package {error.name!r}: pip install {error.name}") from error
    except (RuntimeError, OSError, ValueError, EOFError) as error:
        raise ValueError(
            f"torchvision's {name} is not in {root!r}: give its folder, --data.root FOLDER"
            f" (torchvision says: {error_text(error)})"
        ) from error


def read_idx(root: Path, training: bool) -> Arrays:
    """MNIST's file format, gzipped or not: four bytes for the type and the number of axes, the axes, the values.

    Colour is a fourth axis, of three. Classes are named by the lines of classes.txt, or else numbered.
    """
    prefix = "train" if training else "t10k"
    has_grey, has_colour = (any(root.glob(f"{prefix}-images-idx{axes}-ubyte*")) for axes in (3, 4))
    axes = 4 if has_colour and not has_grey else 3
    name = f"{prefix}-images-idx{axes}-ubyte"
    images, targets = _idx_file(root, name, axes), _idx_file(root, f"{prefix}-labels-idx1-ubyte", 1)
    if images.shape[3:] not in ((), (3,)):
        raise ValueError(f"{root} holds pictures of {images.shape[3]} channels for {prefix}, where colour has 3")
    if len(images) != len(targets):
        raise ValueError(f"{root} holds {len(images)} pictures and {len(targets)} classes for {prefix}")
    return Arrays(images, targets, _idx_classes(root, targets), name)


def _idx_classes(root: Path, targets: np.ndarray) -> list[str]:
    numbers = _numbers(targets)
    if not (file := root / "classes.txt").is_file():
        return numbers
    try:
        lines = read_bytes(file, NAMES_BYTES).decode().splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not a text in UTF-8") from error
    names = [line.strip() for line in lines if line.strip()]
    if len(names) < len(numbers):
        raise ValueError(f"{file} names {len(names)} classes and the pictures have {len(numbers)}")
    return names


def _idx_file(root: Path, name: str, axes: int) -> np.ndarray:
    file = next((root / f for f in (name, f"{name}.gz") if (root / f).is_file()), None)
    if file is None:
        raise ValueError(f"{root} holds neither {name} nor {name}.gz")
    zipped = file.suffix == ".gz"
    try:
        with gzip.open(file) if zipped else file.open("rb") as opened:
            header = opened.read(4 + 4 * axes)
            if header[:4] != bytes([0, 0, 8, axes]) or len(header) < 4 + 4 * axes:
                raise ValueError(f"its header is not that of {axes} axes of bytes")
            shape = struct.unpack_from(f">{axes}I", header, 4)
            size = math.prod(shape)
            if zipped and size > UNZIPPED_BYTES:
                raise ValueError(f"it holds more than {UNZIPPED_BYTES >> 20} MiB: unpack it, with gunzip")
            if not all(shape[1:]) or size > file.stat().st_size * (MOST_ZIPPED if zipped else 1):
                raise ValueError(f"its header says {' × '.join(map(str, shape))} bytes, which it cannot hold")
            values = np.empty(size, np.uint8)
            read = _read_into(opened, values)
            if read < size or opened.read(1):
                raise ValueError(f"its header says {size} bytes, and it holds {'more' if read == size else read}")
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{file} is damaged: {error_text(error)}") from error
    return values.reshape(shape)


def _read_into(opened: BinaryIO | gzip.GzipFile, values: np.ndarray) -> int:
    """Fill `values`, a MiB at a time, for gzip would make a copy of what it is asked for; the number of bytes read."""
    read = 0
    while chunk := opened.read(min(len(values) - read, 2**20)):
        values[read : read + len(chunk)] = np.frombuffer(chunk, np.uint8)
        read += len(chunk)
    return read
