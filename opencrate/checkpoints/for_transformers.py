"""What Hugging Face's transformers needs of a saved network: entries in config.json, its image processor, and the code.

One config.json serves three readers. timm reads `architecture`, `num_classes`, `pretrained_cfg` and `model_args`,
`opencrate.load` the same, transformers `model_type`, `auto_map`, `id2label`; each leaves the others' entries alone.
transformers runs modeling_crate.py only with `trust_remote_code=True`; opencrate and timm never do.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Resampling

from ..classes import class_names, in_words
from ..files import write_json
from ..models.crate import CRATE

CODE = Path(__file__).with_name("modeling_crate.py")
PROCESSOR = "BitImageProcessor"  # transformers' own with this meaning: resize the shorter side, then crop the centre


def config_entries(network: CRATE) -> dict[str, Any]:
    """Entries of config.json; a network that modeling_crate.py cannot express is refused."""
    config = network.config()
    known: dict[str, tuple[Any, ...]] = {"compress": ("mssa", "mssa_tied"), "sparsify": ("ista",)}
    for key, names in known.items():
        if config[key] not in names:
            raise ValueError(
                f"the file for transformers has no {key}={config[key]!r}, only {' and '.join(names)};"
                " leave out transformers=True"
            )
    if config["compress_args"]["basis"] != "free":
        raise ValueError("the file for transformers has no orthonormal bases; leave out transformers=True")
    if config["num_classes"] == 0:
        raise ValueError("transformers needs a network with a classifier; leave out transformers=True")
    if config["img_size"][0] != config["img_size"][1]:
        raise ValueError("transformers' image processor makes square images only; leave out transformers=True")
    names = in_words(class_names(network)) or tuple(f"LABEL_{i}" for i in range(network.num_classes))
    classes = f"{CODE.stem}.CRATEForImageClassification"
    return {
        "model_type": "crate",
        "architectures": ["CRATEForImageClassification"],
        "auto_map": {"AutoConfig": f"{CODE.stem}.CRATEConfig", "AutoModelForImageClassification": classes},
        "dtype": str(torch.promote_types(network.cls_token.dtype, torch.float32)).removeprefix("torch."),
        "id2label": dict(enumerate(names)),
        "label2id": {name: i for i, name in enumerate(names)},
        **image_processor(network),  # transformers looks for it here in a local folder that timm can read
    }


def image_processor(network: CRATE) -> dict[str, Any]:
    """preprocessor_config.json: evaluation's resizing, centre crop and normalisation, by the network's record."""
    record, size, in_chans = network.pretrained_cfg or {}, network.patch_embed.img_size[0], network.in_chans
    mean, std = (list(record.get(key, ())) for key in ("mean", "std"))
    if not len(mean) == len(std) == in_chans:
        mean = std = [0.5] * in_chans
    interpolation = getattr(Resampling, str(record.get("interpolation")).upper(), Resampling.BICUBIC)
    return {
        "image_processor_type": PROCESSOR,
        "do_convert_rgb": in_chans == 3,
        "do_resize": True,
        "size": {"shortest_edge": round(size / record.get("crop_pct", 0.875))},
        "resample": int(interpolation),
        "do_center_crop": True,
        "crop_size": {"height": size, "width": size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
    }


def write_processor_and_code(network: CRATE, folder: Path) -> None:
    write_json(folder / "preprocessor_config.json", image_processor(network))
    shutil.copyfile(CODE, folder / CODE.name)
