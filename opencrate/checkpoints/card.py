"""The model card of a saved network: what it is, what its author states of it, and how it is used.

What nobody states is said to be unknown. A licence is never assumed: the weights' is their author's to state.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from PIL.Image import Resampling

from ..models.crate import CRATE
from .for_transformers import image_processor
from .load import describe_network


@dataclass(frozen=True)
class Card:
    """What the author of a network states of it; empty for what is not stated."""

    license: str = ""  # of the weights, by the Hub's name for it: mit, apache-2.0, cc-by-4.0, …
    dataset: str = ""  # what it was trained on.
    top1: float | None = None  # accuracy in per cent on that dataset's validation images.
    recipe: str = ""  # how it was trained: a recipe's name, or sentences.
    limits: str = ""  # sentences about what it cannot do.


UNSTATED = Card()
_MARK = "<!-- Written by opencrate, {}. This card is replaced by the next one until somebody edits it. -->\n"
_PAPER = "https://arxiv.org/abs/2306.01129"


def card_text(network: CRATE, card: Card, source: str, transformers: bool) -> str:
    """README.md of a network; `source` is what timm loads it from, `hf_hub:owner/name` or `local-dir:folder`."""
    path = source.partition(":")[2]
    name = path.rpartition("/")[2]
    rows = "\n".join(f"| {row} | {value} |" for row, value in describe_network(network).items())
    accuracy = "not stated" if card.top1 is None else f"{card.top1:.2f} % top-1 on its validation images"
    licence = (
        f"The author of these weights states the licence `{card.license}` for them."
        if card.license
        else "No licence was stated for these weights. Without one they may not be reused: ask their author."
    )
    text = f"""---
{yaml.safe_dump(_metadata(network, card, name, transformers), sort_keys=False)}---

# {name}

A CRATE, a white-box transformer: every layer is derived as a step of compression against learned subspaces and a step
of sparse coding in a learned dictionary ([White-Box Transformers via Sparse Rate Reduction]({_PAPER})).

| | |
|---|---|
{rows}

**Images.** {_images(network)}

## Training

- Dataset: {card.dataset or "not stated"}
- Accuracy: {accuracy}
- Recipe: {card.recipe or "not stated"}

## Use

```python
import timm
import opencrate  # registers crate_* with timm

model = opencrate.load("{path}")
model = timm.create_model("{source}", pretrained=True)  # the same network
```
{_with_transformers(path) if transformers else ""}
## Limits

- {_outputs(network)}
- An accuracy holds for images like those that it was measured on. For others it is unknown, and usually lower.
- That a layer is derived as a step of an objective does not say that the trained layer takes this step:
  `opencrate audit` measures it.
{f"- {card.limits}" if card.limits else ""}
## Licence

{licence} The code of opencrate is under the MIT licence.
"""
    return text + "\n" + _MARK.format(_digest(text))


def is_a_persons(file: Path) -> bool:
    """Whether there is a card that a person wrote or edited."""
    if not file.exists():
        return False
    text, _, mark = file.read_text(encoding="utf-8", errors="replace").rpartition("\n<!--")
    return f"<!--{mark}" != _MARK.format(_digest(text))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _metadata(network: CRATE, card: Card, name: str, transformers: bool) -> dict[str, Any]:
    """The Hub's front matter. `library_name` decides which lines the Hub shows for loading the network.

    Those for transformers work as they stand. Those for timm need opencrate imported first, which the card says; the
    Hub knows no library opencrate, and would show none.
    """
    metadata: dict[str, Any] = {"license": card.license} if card.license else {}
    metadata["library_name"] = "transformers" if transformers else "timm"
    task = "image-classification" if network.num_classes else "image-feature-extraction"
    metadata |= {"pipeline_tag": task, "tags": ["timm", "opencrate", "crate", "white-box"]}
    if card.dataset and card.top1 is not None:
        dataset = {"name": card.dataset, "type": card.dataset}
        metrics = [{"type": "accuracy", "name": "top-1", "value": round(card.top1, 2)}]
        results = [{"task": {"type": task}, "dataset": dataset, "metrics": metrics}]
        metadata["model-index"] = [{"name": name, "results": results}]
    return metadata


def _images(network: CRATE) -> str:
    height, width = network.patch_embed.img_size
    prepared, kind = (
        image_processor(network),
        {1: "grey", 3: "RGB"}.get(network.in_chans, f"{network.in_chans}-channel"),
    )
    normalised = f"scaled to [0, 1], minus {prepared['image_mean']}, divided by {prepared['image_std']}"
    if height != width:
        return f"The network takes {kind} images of {height} × {width} pixels, {normalised}."
    return (
        f"The network takes {kind} images: the shorter side resized to {prepared['size']['shortest_edge']} pixels"
        f" ({Resampling(prepared['resample']).name.lower()}), the centre of {height} × {width} pixels, {normalised}."
    )


def _outputs(network: CRATE) -> str:
    if network.num_classes == 0:
        return "The network has no classifier: it gives features."
    return (
        f"The network gives every image one of its {network.num_classes:,} classes, also an image that shows none of"
        " them."
    )


def _with_transformers(path: str) -> str:
    return f"""
Without opencrate, by Hugging Face's transformers, which runs `modeling_crate.py` from this folder:

```python
from transformers import AutoImageProcessor, AutoModelForImageClassification

processor = AutoImageProcessor.from_pretrained("{path}")
model = AutoModelForImageClassification.from_pretrained("{path}", trust_remote_code=True)
logits = model(**processor(image, return_tensors="pt")).logits
```

The processor's pixels are opencrate's with `backend="pil"`, and within 1/255 of them (before normalisation) without it.
Where the resized image has an odd margin around the centre, the crop may begin one pixel earlier.
"""
