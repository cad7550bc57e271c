"""A recipe: everything that decides what a training run computes, as values.

How it is computed (folder, processes, micro-batches, compilation, kernels) is not part of it: `training.Options`. One
field is: `data.root`, for a recipe file that names its folder must keep working. `--root` overrides it on a machine.
"""

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..data.settings import Augmentation, Dataset, Settings
from ..definitions import DEFINITIONS
from ..errors import suggestion
from ..imports import require_module_names

OperatorOptions = dict[str, int | float | bool | str]


@dataclass(frozen=True)
class Expected(Settings):
    """What to expect of a run. Nothing here changes what is computed.

    Args:
        top1: accuracy on the validation split in per cent; none if it was not measured.
        hardware: what it was measured on.
        time: how long it took there.
        source: where the accuracy and the settings are from.
    """

    top1: float | None = None
    hardware: str = ""
    time: str = ""
    source: str = ""


@dataclass(frozen=True)
class Model(Settings):
    """The network: one of timm's names, and what differs from it.

    Args:
        name: crate_… or another of timm's names; empty for the network in `start`.
        start: checkpoint whose weights training starts from; the classifier is replaced if the classes differ.
        embed_dim: dimension of the tokens, d.
        depth: number of layers, L.
        num_heads: number of heads, K.
        patch_size: pixels of a side of a patch.
        compress: compression by name (`opencrate.operators.compressions`).
        compress_args: its options, numbers, True, False or words: for example kappa 0.2 of softmax_step.
        sparsify: sparsification by name (`opencrate.operators.sparsifications`).
        sparsify_args: its options, for example eta 0.1 lam 0.1.
        global_pool: what the classifier sees, token or avg.
        drop_path_rate: stochastic depth.
        proj_drop_rate: dropout on what a compression adds.
        imports: modules of your own that register operators or networks, by their dotted names: my_operators.
    """

    name: str = ""
    start: str = ""
    embed_dim: int | None = None
    depth: int | None = None
    num_heads: int | None = None
    patch_size: int | None = None
    compress: str | None = None
    compress_args: OperatorOptions = field(default_factory=dict)
    sparsify: str | None = None
    sparsify_args: OperatorOptions = field(default_factory=dict)
    global_pool: Literal["token", "avg"] | None = None
    drop_path_rate: float | None = None
    proj_drop_rate: float | None = None
    imports: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_module_names(self.imports)

    def arguments(self) -> dict[str, Any]:
        """What differs from the name, as arguments for `timm.create_model`."""
        values = {key: value for key, value in asdict(self).items() if key not in ("name", "start", "imports")}
        return {key: value for key, value in values.items() if value is not None and value != {}}


@dataclass(frozen=True)
class Optim(Settings):
    """The optimiser, by timm's name for it.

    Args:
        name: lion, adamw, sgd, …
        lr: peak learning rate.
        weight_decay: decoupled weight decay.
        betas: momentum coefficients; none for the optimiser's own.
        decay: what is decayed: all weights, as in the authors' code, or only matrices, as in timm.
        batch: global batch, over all processes.
        clip: largest norm of the gradient, 0 for no limit.
        ema: decay of a moving average of the weights, which is then evaluated and saved, 0 for none.
        bad_steps: steps with a loss that is not finite are skipped; this many in a row stop the run.
    """

    name: str = "lion"
    lr: float = 2.4e-4
    weight_decay: float = 0.5
    betas: tuple[float, float] | None = None
    decay: Literal["all", "matrices"] = "all"
    batch: int = 2048
    clip: float = 0.0
    ema: float = 0.0
    bad_steps: int = 5

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ValueError(f"optim.lr must be positive, got {self.lr}")
        for name in ("weight_decay", "clip"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"optim.{name} must not be negative, got {getattr(self, name)}")
        for name in ("batch", "bad_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"optim.{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.ema < 1:
            raise ValueError(f"optim.ema must be in [0, 1), got {self.ema}")


@dataclass(frozen=True)
class Schedule(Settings):
    """A linear warm-up, then half a cosine.

    Args:
        epochs: epochs of the whole run, the warm-up included.
        warmup_epochs: epochs of the warm-up.
        warmup_lr: learning rate at which the warm-up starts.
        min_lr: learning rate at which the cosine ends.
    """

    epochs: int = 150
    warmup_epochs: int = 5
    warmup_lr: float = 0.0
    min_lr: float = 0.0

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"schedule.epochs must be at least 1, got {self.epochs}")
        if not 0 <= self.warmup_epochs < self.epochs:
            raise ValueError(
                f"schedule.warmup_epochs must be less than schedule.epochs, got {self.warmup_epochs} and {self.epochs}:"
                " set both, or no warm-up (0)"
            )
        for name in ("warmup_lr", "min_lr"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"schedule.{name} must not be negative, got {getattr(self, name)}")


@dataclass(frozen=True)
class Objective(Settings):
    """What is added to the cross-entropy: CRATE's own objective at some layers, orthogonality of its weights.

    By default nothing is added. Every term is a mean over tokens, samples, layers and heads, so that a weight means
    about the same for other pictures and networks; `opencrate.tasks` has the formulas. The bases U could also shrink
    to raise the objective; `orthogonal_U` prevents that.

    Args:
        weight: weight of the sparse rate reduction ΔR − λ‖Z‖₁ per token, which should rise; 0 for none. Such a step
            is not recorded as a CUDA graph.
        layers: the layers after which it is measured, counted from 1; by default all.
        eps: precision ε of the rates.
        lam: weight λ of ‖Z‖₁ in it.
        orthogonal_U: weight of ‖U_kᵀU_k − I‖²/p, the mean over layers and heads; 0 for none.
        orthogonal_D: weight of ‖DᵀD − I‖²/d, the mean over layers; 0 for none.
    """

    weight: float = 0.0
    layers: tuple[int, ...] = ()
    eps: float = 0.1
    lam: float = 0.1
    orthogonal_U: float = 0.0
    orthogonal_D: float = 0.0

    def __post_init__(self) -> None:
        for name in ("weight", "lam", "orthogonal_U", "orthogonal_D"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"objective.{name} must not be negative, got {getattr(self, name)}")
        if not self.eps > 0:
            raise ValueError(f"objective.eps must be positive, got {self.eps}")
        if self.layers and min(self.layers) < 1:
            raise ValueError(f"objective.layers counts layers from 1, got {min(self.layers)}")
        if len(set(self.layers)) < len(self.layers):
            raise ValueError(f"objective.layers names a layer twice: {', '.join(map(str, self.layers))}")

    def weights(self) -> dict[str, float]:
        """The terms that are added to the loss, each with its factor: the objective should rise, the others fall."""
        factors = {"objective": -self.weight, "orthogonal_U": self.orthogonal_U, "orthogonal_D": self.orthogonal_D}
        return {name: factor for name, factor in factors.items() if factor}


@dataclass(frozen=True)
class Recipe(Settings):
    """A training run as values.

    Args:
        name: what the run is called.
        model: the network.
        data: the pictures.
        augment: how training pictures are augmented.
        optim: the optimiser.
        schedule: how long, and the learning rate over time.
        objective: what is added to the loss.
        label_smoothing: share of the target that is spread over all classes.
        precision: type of the products; weights stay in float32.
        definition: definition of R^c that is measured at every layer during training: paper, official or unit.
        probe: number of validation pictures on which it is measured, 0 for none.
        seed: decides weights, order and augmentation.
        expected: what to expect.
    """

    name: str
    model: Model
    data: Dataset
    augment: Augmentation = field(default_factory=Augmentation)
    optim: Optim = field(default_factory=Optim)
    schedule: Schedule = field(default_factory=Schedule)
    objective: Objective = field(default_factory=Objective)
    label_smoothing: float = 0.1
    precision: Literal["bf16", "fp16", "fp32"] = "bf16"
    definition: str = "paper"
    probe: int = 32
    seed: int = 0
    expected: Expected = field(default_factory=Expected)

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1), got {self.label_smoothing}")
        if self.definition not in DEFINITIONS:
            raise ValueError(f"unknown definition {self.definition!r}{suggestion(self.definition, DEFINITIONS)}")
        if self.probe < 0:
            raise ValueError(f"probe must not be negative, got {self.probe}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be between 0 and 2³² − 1, got {self.seed}")
        if not self.model.name and not self.model.start:
            raise ValueError("a recipe needs model.name, or model.start for the network in a checkpoint")
        _require_finite(asdict(self))


def _require_finite(value: Any, path: str = "") -> None:
    if isinstance(value, dict):
        for key, part in value.items():
            _require_finite(part, f"{path}.{key}" if path else key)
    elif isinstance(value, tuple | list):
        for part in value:
            _require_finite(part, path)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{path} must be finite, got {value}")
