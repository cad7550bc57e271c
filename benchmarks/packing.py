"""How fast pictures reach the device: decoded one by one, or packed once and cropped there in batches.

    python -m benchmarks.packing FOLDER --copies 8 --json out/packing.json

FOLDER has a folder of pictures for each class. The packed set is written to a temporary folder and copied `copies`
times, so that it is larger than a processor's caches. It stays in the page cache: no figure here is that of a disk.
"""

import argparse
import io
import json
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count, repeat
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import transforms as T

from opencrate.data.augment.crops import Interpolation, crop_and_resize, crop_boxes
from opencrate.data.datasets.packing import INDEX, TARGETS, Index, PackedPictures, Shard, pack
from opencrate.data.datasets.pictures import Folder
from opencrate.data.datasets.tars import Tars
from opencrate.data.feeds.feed import Batch, Feed, Split
from opencrate.data.feeds.loading import Loaded
from opencrate.data.feeds.packed import Packed
from opencrate.data.settings import Augmentation, Dataset
from opencrate.distributed import World
from opencrate.recipes import Model, Optim, Recipe
from opencrate.training.building import build_model, build_optimizer, build_task, compile_model
from opencrate.training.step import Stepper

from .measure import device_name
from .timing import device_clock

MODES: tuple[Interpolation, ...] = ("bicubic", "bilinear")
SIDE, SIZE = 256, 224


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a folder of pictures for each class")
    parser.add_argument(
        "--copies", type=int, default=8, help="copies of the packed set, 0.2 GB each for 1,000 pictures"
    )
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--model", default="crate_base_patch16_224", help="the model to train from the packed set")
    parser.add_argument("--seconds", type=float, default=10, help="duration of each measurement")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--temporary", type=Path, help="a folder for the packed set, which is removed at the end")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device, pictures = torch.device(arguments.device), Folder(arguments.folder, 3)
    machine = f"{device_name(device)}, {os.cpu_count()} cores, torch {torch.__version__}"
    figures: dict[str, Any] = {"machine": machine, "pictures": len(pictures), "batch": arguments.batch}
    with tempfile.TemporaryDirectory(dir=arguments.temporary) as temporary:
        figures |= decoding(pictures, arguments.seconds)
        figures |= loading(pictures, Path(temporary), arguments.seconds)
        figures |= packing(pictures, Path(temporary))
        enlarge(Path(temporary) / "train", arguments.copies)
        figures |= feeding(Path(temporary), len(pictures.classes), arguments.batch, arguments.seconds, device)
        figures |= training(Path(temporary), arguments.model, arguments.batch, arguments.seconds, device)
    figures |= quality(pictures, device)
    width = max(map(len, figures))
    for name, value in figures.items():
        digits = 3 if name == "ratio" else 1
        print(f"{name:<{width}}  {f'{value:,.{digits}f}' if isinstance(value, float) else value}")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


def rate(batches: Iterable[int], seconds: float, device: torch.device, warm: int = 1) -> float:
    """Pictures a second of an iterable that yields how many it has processed, after `warm` items."""
    clock = device_clock(device)
    begin, pictures = clock(), 0
    for i, number in enumerate(batches):
        pictures += number
        if i + 1 == warm:
            begin, pictures = clock(), 0
        elif i + 1 > warm and time.perf_counter() - begin > seconds:
            break
    return pictures / (clock() - begin)


def decoding(pictures: Folder, seconds: float) -> dict[str, float]:
    """One process, one thread: the work of a data loader's worker."""
    crop = T.RandomResizedCrop(SIZE, interpolation=T.InterpolationMode.BICUBIC)
    transform = T.Compose([crop, T.RandomHorizontalFlip(), T.PILToTensor()])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def speed(work: Callable[[int], object]) -> float:
        return rate((work(i % len(pictures)) is not None for i in count()), seconds, torch.device("cpu"), warm=20)

    figures = {
        "decode, img/s a core": speed(pictures.picture),
        "decode + crop + flip, img/s a core": speed(lambda i: transform(pictures.picture(i))),
    }
    torch.set_num_threads(threads)
    return figures


def loading(pictures: Folder, root: Path, seconds: float) -> dict[str, float]:
    """The feeds without workers: decode, crop, flip and normalise, from files and from a WebDataset shard of them."""
    data = Dataset(num_classes=len(pictures.classes), size=SIZE, root=str(root), train="shard.tar")
    with tarfile.open(root / "shard.tar", "w") as tar:
        for i in range(len(pictures)):
            for name, content in (
                ("jpg", Path(pictures.name(i)).read_bytes()),
                ("cls", str(pictures.targets[i]).encode()),
            ):
                member = tarfile.TarInfo(f"{i:08d}.{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    threads, split = torch.get_num_threads(), Split(32)
    torch.set_num_threads(1)
    feeds: dict[str, Feed] = {
        "folder": Loaded(pictures, data, Augmentation(), True),
        "WebDataset": Loaded(Tars(data, data.train), data, Augmentation(), True),
    }
    figures = {}
    for name, feed in feeds.items():
        batches = (len(targets) for epoch in count() for _, targets in feed.train(epoch, 0, split))
        figures[f"{name} feed, img/s a core"] = rate(batches, seconds, torch.device("cpu"), 2)
    torch.set_num_threads(threads)
    return figures


def packing(pictures: Folder, root: Path) -> dict[str, float]:
    figures = {}
    for split, workers in (("one", 1), ("train", os.cpu_count() or 1)):
        begin = time.perf_counter()
        pack(pictures, root / split, SIDE, shard=256, workers=workers)
        figures[f"pack, img/s on {workers} threads"] = len(pictures) / (time.perf_counter() - begin)
    shutil.rmtree(root / "one")
    return figures


def enlarge(folder: Path, copies: int) -> None:
    """Make the set `copies` times as large, by copies of its files."""
    index, targets = Index.read(folder / INDEX), np.load(folder / TARGETS)
    originals = list(index.shards)
    for copy in range(1, copies):
        for shard in originals:
            name = f"copy{copy}-{shard.file}"
            shutil.copyfile(folder / shard.file, folder / name)
            index.shards.append(Shard(name, shard.count, shard.size))
    np.save(folder / TARGETS, np.tile(targets, copies))
    index.write(folder / INDEX)


def endless(feed: Packed, split: Split, prepare: Callable[[Tensor, Tensor], Any]) -> Iterator[Any]:
    """`Packed.train` with an endless epoch: this set has about 60 steps, and filling the pipeline would count."""
    draws = (draw for epoch in count() for draw in feed._draws(epoch, 0, split))
    return feed._batches(draws, prepare)


def feeding(root: Path, classes: int, batch: int, seconds: float, device: torch.device) -> dict[str, float]:
    """`Packed.train` as in a training loop, and each of its two parts alone."""
    data, figures = Dataset(name="packed", root=str(root), num_classes=classes, size=SIZE), {}
    split = Split(batch)
    for mode in MODES:
        augment = Augmentation(interpolation=mode)
        feed = Packed(PackedPictures(root / data.train, 3), data, augment, True, device=device, compiled=True)

        def batches(prepare: Callable[[Tensor, Tensor], Any], feed: Packed = feed) -> Iterable[int]:
            return (batch for _ in endless(feed, split, prepare))

        def crops(feed: Packed = feed) -> Iterable[int]:
            images = torch.randint(0, 256, (batch, SIDE, SIDE, 3), dtype=torch.uint8).to(device)
            numbers = next(feed._draws(0, 0, split))[1]
            numbers = torch.cat([numbers, torch.arange(batch).view(-1, 1)], 1).to(device)  # and a picture's place
            while feed.augment_batch(images, numbers):
                yield batch

        if mode == MODES[0]:
            figures["read and move to the device, img/s"] = rate(batches(lambda i, n: (i, n)), seconds, device, 4)
        figures[f"crop {mode}, img/s"] = rate(crops(), seconds, device)
        figures[f"Packed.train {mode}, img/s"] = rate(batches(feed.augment_batch), seconds, device, 4)
    return figures


def training(root: Path, model: str, batch: int, seconds: float, device: torch.device) -> dict[str, float]:
    """Training steps on one batch that stays on the device, and on batches from the packed set, in alternation."""
    cuda = device.type == "cuda"
    recipe = Recipe(
        name="feeding",
        model=Model(model),
        data=Dataset("packed", str(root), num_classes=1000, size=SIZE),
        optim=Optim(batch=batch),
        precision="bf16" if cuda else "fp32",
    )
    world, pictures = World(0, 1, device), PackedPictures(root / recipe.data.train, 3)
    feed = Packed(pictures, recipe.data, recipe.augment, True, device=device, compiled=True)
    network = build_model(recipe).to(device)
    if cuda:
        compile_model(network)
    optimizer, task = build_optimizer(recipe, network), build_task(recipe)
    stepper = Stepper(network, optimizer, task, Split(batch), world, precision=recipe.precision, graphs=True)
    packed = endless(feed, Split(batch), feed.augment_batch)
    same = repeat(next(packed))

    def speed(source: Iterator[Batch]) -> float:
        return rate((batch for step in count() if stepper.step(source, step)), seconds, device, 4)

    rounds = [(speed(same), speed(packed)) for _ in range(3)]
    figures = {f"train {model} on one batch, img/s": mean(a for a, _ in rounds)}
    figures[f"train {model} from the packed set, img/s"] = mean(b for _, b in rounds)
    return figures | {"ratio": median(b / a for a, b in rounds)}


def quality(pictures: Folder, device: torch.device) -> dict[str, float]:
    """PSNR in dB of a crop of the packed square, compared with PIL's crop of the original, for the same box.

    ImageNet's pictures are about 375 pixels high, and packing shrinks them by 1.46. For a sample whose shorter side is
    256, side and size are shrunk by the same factor: 175 and 153.
    """
    figures: dict[str, float] = {}
    for side, size in ((SIDE, SIZE), (175, 153)):
        boxes = crop_boxes(64, side, side, (0.08, 1.0), (3 / 4, 4 / 3), torch.Generator().manual_seed(0))
        originals = [pictures.picture(i * len(pictures) // 64) for i in range(64)]
        squares = [central_square(image) for image in originals]
        packed = torch.stack([pixels(image.resize((side, side), Image.Resampling.BICUBIC)) for image in squares])
        exact = {mode: [part(*pair, side, size, mode) for pair in zip(squares, boxes, strict=True)] for mode in MODES}
        for mode in MODES:
            crops = crop_and_resize(packed.to(device), boxes.to(device), None, size, mode).float().clamp(0, 255).cpu()
            figures[f"crop of {side} px against original, {mode} {size} px, dB"] = psnr(crops, exact[mode])
        figures[f"bilinear against bicubic of the original, {size} px, dB"] = psnr(
            torch.stack(exact["bilinear"]).float(), exact["bicubic"]
        )
    return figures


def central_square(image: Image.Image) -> Image.Image:
    short = min(image.size)
    left, top = ((length - short) // 2 for length in image.size)
    return image.crop((left, top, left + short, top + short))


def part(image: Image.Image, box: Tensor, side: int, size: int, mode: str) -> Tensor:
    """The box, in pixels of a square of `side`, of an image of any size."""
    top, left, h, w = (box * image.size[0] / side).tolist()
    resized = image.resize((size, size), Image.Resampling[mode.upper()], (left, top, left + w, top + h))
    return pixels(resized)


def pixels(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def psnr(crops: Tensor, exact: list[Tensor]) -> float:
    errors = [(crop - reference).square().mean().item() for crop, reference in zip(crops, exact, strict=True)]
    return mean(10 * np.log10(255**2 / max(error, 1e-10)).item() for error in errors)


if __name__ == "__main__":
    main()
