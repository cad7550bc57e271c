"""Numbered pictures from every kind of source: arrays, folders, torchvision's and Hugging Face's datasets, IDX files.

An error that concerns a whole set (no pictures, one class, splits that do not match) is raised at once. A picture that
does not decode is counted, named in the log and left out; only too many of them stop a run.
"""

import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from ...errors import suggestion
from ..settings import VALIDATION_NAMES, Dataset
from . import digits
from .decoding import decode, error_text
from .tars import Tars


class Pictures(Protocol):
    """A split: picture i, its class and its name. `picture` raises OSError or ValueError if it does not decode."""

    classes: tuple[str, ...]

    def __len__(self) -> int: ...
    def picture(self, i: int) -> Image.Image: ...
    def target(self, i: int) -> int: ...
    def name(self, i: int) -> str: ...


class Arrays:
    """Pictures in memory: uint8 (n, H, W) or (n, H, W, 3)."""

    def __init__(self, images: np.ndarray, targets: np.ndarray, classes: Iterable[str], label: str) -> None:
        self.images, self.targets, self.classes, self.label = images, targets, tuple(classes), label

    def __len__(self) -> int:
        return len(self.images)

    def picture(self, i: int) -> Image.Image:
        return Image.fromarray(self.images[i])

    def target(self, i: int) -> int:
        return int(self.targets[i])

    def name(self, i: int) -> str:
        return f"{self.label} picture {i}"


class Folder:
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
        self.classes = tuple(sorted(reader.class_to_idx, key=lambda name: (natural_key(name), name)))
        number = {reader.class_to_idx[name]: i for i, name in enumerate(self.classes)}
        self.samples: list[tuple[str, int]] = [(file, number[target]) for file, target in reader.samples]
        self.in_chans = in_chans
        if "" in self.classes:  # timm's, of pictures beside the folders
            stray = next(name for name, target in self.samples if not self.classes[target])
            raise ValueError(f"{stray} is not in the folder of a class")

    def __len__(self) -> int:
        return len(self.samples)

    def picture(self, i: int) -> Image.Image:
        return decode(Path(self.samples[i][0]).read_bytes(), self.in_chans)

    def target(self, i: int) -> int:
        return self.samples[i][1]

    def name(self, i: int) -> str:
        return self.samples[i][0]


class Torchvision:
    """A torchvision dataset on disk."""

    def __init__(self, name: str, root: str, split: str) -> None:
        self.dataset, self.label = _torchvision(name, root, split), f"torch/{name}, {split}"
        targets = next(
            (getattr(self.dataset, key) for key in ("targets", "_labels") if hasattr(self.dataset, key)), None
        )
        if targets is None:
            raise ValueError(f"torchvision's {name} has no list of classes")
        self.targets = np.asarray(targets)
        names = getattr(self.dataset, "classes", None) or [str(i) for i in range(int(self.targets.max()) + 1)]
        self.classes = tuple(name if isinstance(name, str) else ", ".join(name) for name in names)

    def __len__(self) -> int:
        return len(self.dataset)

    def picture(self, i: int) -> Image.Image:
        try:
            image: Image.Image = self.dataset[i][0]
        except Exception as error:  # as in decode
            raise ValueError(error_text(error)) from error
        return image

    def target(self, i: int) -> int:
        return int(self.targets[i])

    def name(self, i: int) -> str:
        return f"{self.label}, picture {i}"


class HuggingFace:
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
            raise ValueError(f"hfds/{name}, {split}, does not open: {' '.join(str(error).split())}") from error
        self.label, self.in_chans = f"hfds/{name}, {split}", in_chans
        features = self.reader.dataset.features[self.reader.label_key]
        self.targets = np.asarray(self.reader.dataset[self.reader.label_key])
        self.classes = tuple(getattr(features, "names", None) or map(str, range(int(self.targets.max()) + 1)))

    def __len__(self) -> int:
        return len(self.reader)

    def picture(self, i: int) -> Image.Image:
        with self.reader[i][0] as file:
            return decode(file.read(), self.in_chans)

    def target(self, i: int) -> int:
        return int(self.targets[i])

    def name(self, i: int) -> str:
        return f"{self.label}, picture {i}"


def open_pictures(data: Dataset, training: bool) -> Pictures:
    """The training or the validation split that the settings name."""
    kind, _, name = data.name.partition("/")
    split = data.train if training else data.validation
    pictures: Pictures
    if data.name == "digits":
        pictures = Arrays(*digits.load(training), classes=digits.CLASSES, label="digit")
    elif data.name == "folder":
        pictures = Folder(split_folder(Path(data.root).expanduser(), split), data.in_chans)
    elif data.name == "idx":
        pictures = _idx(Path(data.root).expanduser(), training)
    elif data.name == "wds":
        pictures = Tars(data, split)
    elif kind == "torch" and name:
        pictures = Torchvision(name, data.root, "train" if training else "test")
    elif kind == "hfds" and name:
        pictures = HuggingFace(name, data.root, split, data.in_chans)
    else:
        known = ("digits", "folder", "idx", "torch/NAME", "hfds/NAME", "wds", "packed")
        raise ValueError(f"unknown dataset {data.name!r}{suggestion(data.name, known)}")
    require_classes(pictures.classes, len(pictures), data)
    return pictures


def require_classes(classes: tuple[str, ...], pictures: int, data: Dataset) -> None:
    if pictures == 0:
        raise ValueError(f"no pictures were found in {data.root}")
    if len(classes) == 1:
        raise ValueError(f"all pictures in {data.root} are of one class, {classes[0]}: a classifier needs at least two")
    if len(classes) > data.num_classes:
        raise ValueError(
            f"{data.name} has {len(classes)} classes but data.num_classes is {data.num_classes}:"
            f" give --data.num-classes {len(classes)}"
        )


def require_same_classes(training: tuple[str, ...], validation: tuple[str, ...]) -> None:
    """Classes are numbered by their names' order, so two splits must name the same ones."""
    missing, unknown = sorted(set(training) - set(validation)), sorted(set(validation) - set(training))
    if missing:
        raise ValueError(f"the validation split has no class {_first(missing)}, which the training split has")
    if unknown:
        raise ValueError(f"the training split has no class {_first(unknown)}, which the validation split has")


def _first(names: list[str]) -> str:
    return repr(names[0]) + (f" (nor {len(names) - 1} others)" if len(names) > 1 else "")


def split_folder(root: Path, split: str) -> Path:
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder: give the one with the pictures, --data.root FOLDER")
    names = VALIDATION_NAMES if split == VALIDATION_NAMES[0] else (split,)  # the default goes by several names
    for name in names:
        if (root / name).is_dir():
            return root / name
    raise ValueError(f"{root} has no folder {' or '.join(map(repr, names))}")


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
            f" (torchvision says: {' '.join(str(error).split())})"
        ) from error


def _idx(root: Path, training: bool) -> Arrays:
    """MNIST's file format, gzipped or not: four bytes for the type and the number of axes, the axes, the values.

    Colour is a fourth axis, of three. Classes are named by the lines of classes.txt, or else numbered.
    """
    prefix = "train" if training else "t10k"
    axes = next((axes for axes in (3, 4) if _existing(root, f"{prefix}-images-idx{axes}-ubyte")), 3)
    name = f"{prefix}-images-idx{axes}-ubyte"
    images, targets = _idx_file(root, name, axes), _idx_file(root, f"{prefix}-labels-idx1-ubyte", 1)
    if images.shape[3:] not in ((), (3,)):
        raise ValueError(f"{root} holds pictures of {images.shape[3]} channels for {prefix}, where colour has 3")
    if len(images) != len(targets):
        raise ValueError(f"{root} holds {len(images)} pictures and {len(targets)} classes for {prefix}")
    return Arrays(images, targets, _idx_classes(root, int(targets.max(initial=0)) + 1), name)


def _idx_classes(root: Path, count: int) -> list[str]:
    if not (file := root / "classes.txt").is_file():
        return [str(i) for i in range(count)]
    names = [line.strip() for line in file.read_text("utf-8").splitlines() if line.strip()]
    if len(names) < count:
        raise ValueError(f"{file} names {len(names)} classes and the pictures have {count}")
    return names


def _existing(root: Path, name: str) -> Path | None:
    return next((root / f for f in (name, f"{name}.gz") if (root / f).is_file()), None)


def _idx_file(root: Path, name: str, axes: int) -> np.ndarray:
    file = _existing(root, name)
    if file is None:
        raise ValueError(f"{root} holds neither {name} nor {name}.gz")
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        if content[:4] != bytes([0, 0, 8, axes]):
            raise ValueError(f"its header is not that of {axes} axes of bytes")
        shape = np.frombuffer(content, ">u4", axes, 4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{file} is damaged: {' '.join(str(error).split())}") from error
