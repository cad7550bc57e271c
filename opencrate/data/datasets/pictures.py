"""Numbered pictures from several kinds of source: arrays, folders, torchvision, Hugging Face, IDX files."""

import gzip
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ...errors import suggestion
from ...files import PICTURE_BYTES, read_bytes
from .decoding import decode, error_text


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
    """Files in one folder for each class, found by timm's reader."""

    def __init__(self, directory: Path, in_chans: int) -> None:
        from timm.data.readers import create_reader
        from timm.utils.misc import natural_key

        if not any(directory.iterdir()):
            raise ValueError(f"no pictures were found in {directory}: it is empty")
        try:
            reader = create_reader("", str(directory))
        except RuntimeError as error:  # timm's, for a folder without images
            raise ValueError(f"no pictures were found in {directory}, in a folder for each class") from error
        # timm's order ignores case and leading zeros, and the order of A and a differs between processes
        classes = tuple(sorted(reader.class_to_idx, key=lambda name: (natural_key(name), name)))
        number = {reader.class_to_idx[name]: i for i, name in enumerate(classes)}
        files = [file for file, _ in reader.samples]
        super().__init__(files, np.array([number[target] for _, target in reader.samples]), classes, in_chans)
        if "" in classes:  # timm's, of pictures beside the folders
            stray = files[self.targets.tolist().index(classes.index(""))]
            raise ValueError(f"{stray} is not in the folder of a class")


class Torchvision(Pictures):
    """A torchvision dataset on disk."""

    def __init__(self, name: str, root: str, split: str) -> None:
        self.dataset, self.label = _torchvision(name, root, split), f"torch/{name}, {split},"
        self.targets = np.asarray(getattr(self.dataset, "targets" if hasattr(self.dataset, "targets") else "_labels"))
        self.classes = tuple(name if isinstance(name, str) else ", ".join(name) for name in self.dataset.classes)

    def picture(self, i: int) -> Image.Image:
        try:
            image: Image.Image = self.dataset[i][0]
        except Exception as error:  # as in decode
            raise ValueError(error_text(error)) from error
        return image


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


def _torchvision(name: str, root: str, split: str) -> Any:
    from torchvision import datasets

    train, evaluated = split == "train", "train" if split == "train" else "val"
    builders: dict[str, Any] = {
        "cifar10": lambda: datasets.CIFAR10(root, train),
        "cifar100": lambda: datasets.CIFAR100(root, train),
        "mnist": lambda: datasets.MNIST(root, train),
        "fashion_mnist": lambda: datasets.FashionMNIST(root, train),
        "flowers102": lambda: datasets.Flowers102(root, split),
        "pets": lambda: datasets.OxfordIIITPet(root, "trainval" if train else "test"),
        "imagenet": lambda: datasets.ImageNet(root, evaluated),
    }
    if name not in builders:
        raise ValueError(f"unknown torchvision dataset {name!r}{suggestion(name, builders)}")
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
    names = [line.strip() for line in file.read_text("utf-8").splitlines() if line.strip()]
    if len(names) < len(numbers):
        raise ValueError(f"{file} names {len(names)} classes and the pictures have {len(numbers)}")
    return names


def _idx_file(root: Path, name: str, axes: int) -> np.ndarray:
    file = next((root / f for f in (name, f"{name}.gz") if (root / f).is_file()), None)
    if file is None:
        raise ValueError(f"{root} holds neither {name} nor {name}.gz")
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        if content[:4] != bytes([0, 0, 8, axes]):
            raise ValueError(f"its header is not that of {axes} axes of bytes")
        shape = np.frombuffer(content, ">u4", axes, 4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{file} is damaged: {error_text(error)}") from error
