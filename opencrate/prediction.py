"""Naming pictures: the most probable classes of each, and where the network looked.

    prediction = opencrate.predict("photo.jpg")
    print(prediction)                          # 93.1 %  cat …
    prediction.overlay().save("looked.png")    # red where the network attended

Where it looked is the attention of the token that is classified in the last layer, the mean over heads. It says which
patches that layer read, not that these decided the class.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from . import shipped
from .classes import class_names, in_words
from .data.datasets.decoding import decode
from .distributed import device_named
from .errors import one_line, printable, require_at_least, sentence
from .files import PICTURE_BYTES, json_text, read_bytes
from .inspection.classified import classified_attention, on_grid, rows_of_classified
from .inspection.recording import record
from .settings import Predicting
from .sources import data_for, gallery_of, open_network, pictures_in
from .stack import is_stack

Picture = str | Path | Image.Image | np.ndarray

DRAWN_AS = (".png", ".jpg", ".jpeg", ".webp")
FULL = 3.0  # times the mean attention from which on a patch is drawn in the strongest red
RED, REDNESS = (255, 60, 0), 0.75  # the colour, and how much of it covers such a patch
UNSEEN = 0.4  # the light of what the network did not see


@dataclass(frozen=True, eq=False)
class Prediction:
    """The most probable classes of a picture, best first, and the attention to its patches."""

    classes: tuple[str, ...]
    probabilities: tuple[float, ...]
    attention: np.ndarray | None = field(repr=False)  # (h, w), sums to 1; None for a network without attention maps
    picture: Image.Image = field(repr=False)  # upright and whole
    box: tuple[int, int, int, int] = field(repr=False)  # of the centre that the network saw: left, top, right, bottom

    def __str__(self) -> str:
        return "\n".join(f"{100 * p:5.1f} %  {name}" for name, p in zip(self.classes, self.probabilities, strict=True))

    def overlay(self) -> Image.Image:
        """The picture in grey, red where the network looked; what it did not see, around the centre, is darker.

        A patch is as red as can be from three times the attention of a mean patch on, so that attention to all patches
        alike is pale everywhere.
        """
        if self.attention is None:
            raise ValueError("the network hands out no attention maps, so there is nothing to draw over the picture")
        left, top, right, bottom = self.box
        share = np.clip(self.attention * self.attention.size / FULL, 0, 1) * REDNESS
        mask = Image.fromarray((255 * share).round().astype(np.uint8))
        grey = self.picture.convert("L").convert("RGB")
        drawn = grey.point(lambda light: round(light * UNSEEN))
        drawn.paste(grey.crop(self.box), self.box)
        mask = mask.resize((right - left, bottom - top), Image.Resampling.BILINEAR)
        drawn.paste(Image.new("RGB", mask.size, RED), self.box, mask)
        return drawn


def predict(image: Picture, model: Any = None, top: int = 5) -> Prediction:
    """The `top` most probable classes of a picture: a file, a PIL image or an array (H, W) or (H, W, 3) of uint8.

    `model` is a network, a checkpoint or a run; by default the network that comes with the package.
    """
    require_at_least(1, top=top)
    network: Any = model
    if model is None:
        network = _shipped()
    elif isinstance(model, str | Path):
        network = open_network(str(model))[0]
    if not network.num_classes:
        raise ValueError("the network has no classifier, so it can name nothing")
    if network.training:
        raise ValueError("the network is in training mode: call its eval() first")
    data, picture = data_for(network), _opened(image)
    logits, attention = _looked(network, gallery_of(picture, data).images.to(next(network.parameters()).device))
    best = logits[0].double().softmax(-1).topk(min(top, network.num_classes))
    names = in_words(class_names(network)) or tuple(f"class {i}" for i in range(network.num_classes))
    return Prediction(
        tuple(names[i] for i in best.indices.tolist()),
        tuple(best.values.tolist()),
        attention,
        picture.convert("RGB"),
        _centre(picture.size, data.crop_pct),
    )


def predict_files(places: Sequence[str], settings: Predicting) -> Iterator[str]:
    """A text for each of these pictures, and for those in these folders; at last an error if some could not be read."""
    if not places:
        raise ValueError("name a picture, or a folder of pictures: opencrate predict PICTURE …")
    files = [file for place in places for file in _files_at(Path(place).expanduser())]
    overlay, failures = settings.overlay, list[str]()
    is_folder = overlay is not None and (overlay.is_dir() or not overlay.suffix)
    if overlay is not None and not is_folder and overlay.suffix.lower() not in DRAWN_AS:
        raise ValueError(f"--overlay {overlay} must end in {', '.join(DRAWN_AS)}, or be a folder")
    if overlay is not None and not is_folder and len(files) > 1:
        raise ValueError(f"--overlay {overlay} is one file for {len(files)} pictures: give a folder's name")
    if is_folder and len({file.stem for file in files}) < len(files):
        raise ValueError(
            f"several pictures have one name, so their drawings in {overlay} would be lost: name them apart"
        )
    network: Any = open_network(settings.model or str(shipped.NETWORK))[0].to(device_named(settings.device))
    for file in files:
        try:
            prediction = predict(file, network, settings.top)
        except (ValueError, OSError) as error:
            failures.append(one_line(sentence(error), 250))
            continue
        drawn = None
        if overlay is not None:
            drawn = overlay / f"{file.stem}.png" if is_folder else overlay
            drawn.parent.mkdir(parents=True, exist_ok=True)
            prediction.overlay().save(drawn)
        yield _as_json(file, prediction, drawn) if settings.json else _as_text(file, prediction, drawn)
    if failures:
        rest = f" (and {len(failures) - 1} more of {len(files)} pictures)" if len(failures) > 1 else ""
        raise ValueError(f"{failures[0]}{rest}")


def _files_at(place: Path) -> list[Path]:
    return pictures_in(place) if place.is_dir() else [place]


def _as_text(file: Path, prediction: Prediction, drawn: Path | None) -> str:
    looked = "" if drawn is None else f"\n  where it looked: {drawn}"
    return printable(f"{file}\n{prediction}{looked}")


def _as_json(file: Path, prediction: Prediction, drawn: Path | None) -> str:
    attention = None if prediction.attention is None else prediction.attention.round(6).tolist()
    names = dict(zip(prediction.classes, prediction.probabilities, strict=True))
    return json_text({"file": str(file), "classes": names, "attention": attention, "overlay": drawn})


@cache
def _shipped() -> Any:
    return open_network(str(shipped.NETWORK))[0]


def _opened(image: Picture) -> Image.Image:
    """The picture, upright."""
    if isinstance(image, str | Path):
        try:
            image = decode(read_bytes(Path(image).expanduser(), PICTURE_BYTES))
        except ValueError as error:
            raise ValueError(f"{one_line(str(image))} cannot be read as a picture: {error}") from error
    elif isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.shape[2:] not in ((), (3,)) or image.ndim not in (2, 3):
            raise ValueError(f"an array must be uint8 (H, W) or (H, W, 3), got {image.dtype} {image.shape}")
        image = Image.fromarray(image)
    return ImageOps.exif_transpose(image)


@torch.inference_mode()
def _looked(network: Any, images: Tensor) -> tuple[Tensor, np.ndarray | None]:
    """The logits of one picture, and the last layer's attention to its patches (h, w)."""
    recording = record(network, images) if is_stack(network) else None
    logits: Any = recording.logits if recording else network(images)
    try:
        if recording:
            maps = on_grid(network, rows_of_classified(network, recording.steps[-1].maps))
        else:
            maps = classified_attention(network, images)
    except ValueError:  # the network has none
        return logits, None
    attention = maps[0].double().mean(0)
    return logits, (attention / attention.sum().clamp_min(1e-12)).cpu().numpy()


def _centre(size: tuple[int, int], crop_pct: float) -> tuple[int, int, int, int]:
    """Evaluation's centre crop of a picture, in its own pixels."""
    width, height = size
    side = round(min(size) * crop_pct)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side
