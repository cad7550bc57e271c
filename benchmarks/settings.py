"""The options of `python -m benchmarks`; defaults depend on the device."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from opencrate.errors import suggestion
from opencrate.models.registry import SIZES

MEASUREMENTS = ("training", "inference", "latency", "memory", "attention")
NETWORKS = ("pseudocode", "opencrate", "folded", "vit")
MODES = ("eager", "compiled", "graphed")  # graphed: compiled, and a training step is recorded as CUDA graphs
VARIANTS = tuple(
    f"{network}-{mode}" for network in NETWORKS for mode in MODES if (network, mode) != ("folded", "graphed")
)


@dataclass(frozen=True)
class Bench:
    """Compare training and inference of the paper's pseudocode, opencrate and timm's ViT, in alternation.

    Args:
        sizes: tiny, small, base, large; by default base, and tiny with --quick.
        only: training, inference, latency, memory, attention; by default all.
        variants: pseudocode-eager, -compiled, -graphed (a training step recorded as CUDA graphs), and so on with
            opencrate, folded (for inference) and vit; by default all.
        batch: pictures in a batch; by default 512 on a GPU (large: 256), 8 on a CPU. Latency is that of one picture.
        device: cuda or cpu; by default cuda if there is a GPU.
        precision: of autocast; by default bf16 on a GPU, fp32 on a CPU.
        tolerance: how many times the plain network's own error, in the same precision, counts as agreement.
        seconds: length of a timed window of training; other windows are shorter.
        rounds: windows of each variant, in alternation; the median counts.
        out: folder for bench.json and bench.png.
        quick: a minute on a CPU: CRATE-Tiny, nothing compiled, small batches, short windows.
        show: earlier bench.json files, or their folders, to print and draw together; nothing is measured.
    """

    sizes: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    batch: int | None = None
    device: str = ""
    precision: Literal["bf16", "fp32"] | None = None
    tolerance: float = 2.0
    seconds: float | None = None
    rounds: int | None = None
    out: Path = Path("out/bench")
    quick: bool = False
    show: tuple[Path, ...] = ()

    def require_valid(self) -> None:
        """Not called by the constructor, so that the message is printed as it is, not by tyro."""
        for what, names, known in (
            ("size", self.sizes, SIZES),
            ("measurement", self.only, MEASUREMENTS),
            ("variant", self.variants, VARIANTS),
        ):
            for name in names:
                if name not in known:
                    raise ValueError(f"unknown {what} {name!r}{suggestion(name, known)}")
        for option in ("batch", "tolerance", "seconds", "rounds"):
            value = getattr(self, option)
            if value is not None and not value > 0:
                raise ValueError(f"--{option} must be positive, got {value}")
        if self.device:
            _require_device(self.device)

    def resolved(self) -> "Bench":
        """With the defaults of the device; raises if an option is not possible."""
        self.require_valid()
        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        cuda = torch.device(device).type == "cuda"
        defaults: dict[str, Any] = {
            "sizes": ("tiny",) if self.quick else ("base",),
            "only": MEASUREMENTS,
            "variants": tuple(name for name in VARIANTS if name.endswith("eager") or not self.quick),
            "device": device,
            "precision": "bf16" if cuda else "fp32",
            "seconds": 0.1 if self.quick else 1.0,
            "rounds": 3 if self.quick else 5,
        }
        return replace(self, **{name: getattr(self, name) or value for name, value in defaults.items()})

    def batch_of(self, size: str) -> int:
        if self.batch:
            return self.batch
        if torch.device(self.device).type == "cuda":
            return 32 if self.quick else 256 if size == "large" else 512
        return 2 if self.quick else 8


def _require_device(name: str) -> None:
    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = name
    if kind not in ("cuda", "cpu"):
        raise ValueError(f"unknown device {name!r}; known: cpu, cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch finds no GPU on this machine; use --device cpu")
