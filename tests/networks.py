"""Small networks for the tests, and the paper's transcription with the same weights."""

import torch

from benchmarks.pseudocode import PaperCRATE
from opencrate import CRATE
from opencrate.checkpoints.key_maps import to_authors

SMALL = {"img_size": 16, "patch_size": 4, "num_classes": 5, "embed_dim": 24, "depth": 3, "num_heads": 4}


def own(registry) -> list[str]:
    """The names of the operators that come with the library, without those that tests register."""
    return sorted(name for name, operator in registry.items() if operator.__module__.startswith("opencrate."))


def small(seed: int = 0, **kwargs) -> CRATE:
    """A network whose every weight is random, those included that start at 0 or 1."""
    torch.manual_seed(seed)
    model = CRATE(**{**SMALL, **kwargs})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def transcribed(model: CRATE) -> PaperCRATE:
    """The paper's algorithms with this network's weights."""
    config = model.config()
    paper = PaperCRATE(
        image_size=config["img_size"][0],
        patch_size=config["patch_size"][0],
        num_classes=config["num_classes"],
        dim=config["embed_dim"],
        depth=config["depth"],
        heads=config["num_heads"],
        dim_head=config["head_dim"],
        channels=config["in_chans"],
        pool="mean" if config["global_pool"] == "avg" else "cls",
        step_size=config["sparsify_args"]["eta"],
        lambd=config["sparsify_args"]["lam"],
    ).to(model.cls_token.dtype)
    paper.load_state_dict(to_authors(model.state_dict()))
    return paper.eval()
