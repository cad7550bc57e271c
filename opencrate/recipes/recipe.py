"""A recipe: everything that decides what a training run computes, as values.

How it is computed (folder, processes, micro-batches, compilation, kernels) is not part of it: `training.Options`. One
field is: `data.root`, for a recipe file that names its folder must keep working. `--root` overrides it on a machine.
"""

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from ..bounds import AtLeastOne, Bound, NotNegative, OneOf, Positive, ProperFraction, Settings
from ..data.settings import Augmentation, Dataset
from ..definitions import DEFINITIONS
from ..errors import shown
from ..imports import require_module_names

OperatorOptions = dict[str, int | float | bool | str]


@dataclass(frozen=True)
class Expected(Settings, section="expected"):
    """What to expect of a run. Nothing here changes what is computed."""

    top1: float | None = None  # accuracy on the validation split in per cent; none if it was not measured.
    hardware: str = ""  # what it was measured on.
    time: str = ""  # how long it took there.
    source: str = ""  # where the accuracy and the settings are from.


@dataclass(frozen=True)
class Model(Settings, section="model"):
    """The network: one of timm's names, and what differs from it."""

    name: str = ""  # crate_… or another of timm's names; empty for the network in `start`.
    start: str = ""  # checkpoint whose weights training starts from; the classifier is replaced if the classes differ.
    embed_dim: int | None = None  # dimension of the tokens, d.
    depth: int | None = None  # number of layers, L.
    num_heads: int | None = None  # number of heads, K.
    patch_size: int | None = None  # pixels of a side of a patch.
    compress: str | None = None  # compression by name (`opencrate.operators.compressions`).
    # its options, numbers, True, False or words: for example kappa 0.2 of softmax_step.
    compress_args: OperatorOptions = field(default_factory=dict)
    sparsify: str | None = None  # sparsification by name (`opencrate.operators.sparsifications`).
    sparsify_args: OperatorOptions = field(default_factory=dict)  # its options, for example eta 0.1 lam 0.1.
    global_pool: Literal["token", "avg"] | None = None  # what the classifier sees, token or avg.
    drop_path_rate: float | None = None  # stochastic depth.
    proj_drop_rate: float | None = None  # dropout on what a compression adds.
    # modules of your own that register operators or networks, by their dotted names: my_operators.
    imports: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_module_names(self.imports)

    def arguments(self) -> dict[str, Any]:
        """What differs from the name, as arguments for `timm.create_model`."""
        values = {key: value for key, value in asdict(self).items() if key not in ("name", "start", "imports")}
        return {key: value for key, value in values.items() if value is not None and value != {}}


@dataclass(frozen=True)
class Optim(Settings, section="optim"):
    """The optimiser, by timm's name for it."""

    name: str = "lion"  # lion, adamw, sgd, …
    lr: Positive[float] = 2.4e-4  # peak learning rate.
    weight_decay: NotNegative[float] = 0.5  # decoupled weight decay.
    betas: tuple[float, float] | None = None  # momentum coefficients; none for the optimiser's own.
    # what is decayed: all weights, as in the authors' code, or only matrices, as in timm.
    decay: Literal["all", "matrices"] = "all"
    batch: AtLeastOne[int] = 2048  # global batch, over all processes.
    clip: NotNegative[float] = 0.0  # largest norm of the gradient, 0 for no limit.
    # decay of a moving average of the weights, which is then evaluated and saved, 0 for none.
    ema: ProperFraction[float] = 0.0
    bad_steps: AtLeastOne[int] = 5  # steps with a loss that is not finite are skipped; this many in a row stop the run.


@dataclass(frozen=True)
class Schedule(Settings, section="schedule"):
    """A linear warm-up, then half a cosine."""

    epochs: AtLeastOne[int] = 150  # epochs of the whole run, the warm-up included.
    warmup_epochs: int = 5  # epochs of the warm-up.
    warmup_lr: NotNegative[float] = 0.0  # learning rate at which the warm-up starts.
    min_lr: NotNegative[float] = 0.0  # learning rate at which the cosine ends.

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.warmup_epochs < self.epochs:
            raise ValueError(
                f"schedule.warmup_epochs must be less than schedule.epochs, got {shown(self.warmup_epochs)} and"
                f" {shown(self.epochs)}: set both, or no warm-up (0)"
            )


@dataclass(frozen=True)
class Objective(Settings, section="objective"):
    """What is added to the cross-entropy: CRATE's own objective at some layers, orthogonality of its weights.

    By default nothing is added. Every term is a mean over tokens, samples, layers and heads, so that a weight means
    about the same for other pictures and networks; `opencrate.tasks` has the formulas. The bases U could also shrink
    to raise the objective; `orthogonal_U` prevents that.
    """

    # weight of the sparse rate reduction ΔR − λ‖Z‖₁ per token, which should rise; 0 for none. Such a step is not
    # recorded as a CUDA graph.
    weight: NotNegative[float] = 0.0
    # the layers after which it is measured, counted from 1; by default all.
    layers: Annotated[tuple[int, ...], Bound(lambda layer: layer >= 1, "counts layers from 1")] = ()
    eps: Positive[float] = 0.1  # precision ε of the rates.
    lam: NotNegative[float] = 0.1  # weight λ of ‖Z‖₁ in it.
    orthogonal_U: NotNegative[float] = 0.0  # weight of ‖U_kᵀU_k − I‖²/p, the mean over layers and heads; 0 for none.
    orthogonal_D: NotNegative[float] = 0.0  # weight of ‖DᵀD − I‖²/d, the mean over layers; 0 for none.

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.layers)) < len(self.layers):
            raise ValueError(f"objective.layers names a layer twice: {', '.join(map(str, self.layers))}")

    def weights(self) -> dict[str, float]:
        """The terms that are added to the loss, each with its factor: the objective should rise, the others fall."""
        factors = {"objective": -self.weight, "orthogonal_U": self.orthogonal_U, "orthogonal_D": self.orthogonal_D}
        return {name: factor for name, factor in factors.items() if factor}


@dataclass(frozen=True)
class Recipe(Settings):
    """A training run as values."""

    name: str  # what the run is called.
    model: Model  # the network.
    data: Dataset  # the pictures.
    augment: Augmentation = field(default_factory=Augmentation)  # how training pictures are augmented.
    optim: Optim = field(default_factory=Optim)  # the optimiser.
    schedule: Schedule = field(default_factory=Schedule)  # how long, and the learning rate over time.
    objective: Objective = field(default_factory=Objective)  # what is added to the loss.
    label_smoothing: ProperFraction[float] = 0.1  # share of the target that is spread over all classes.
    precision: Literal["bf16", "fp16", "fp32"] = "bf16"  # type of the products; weights stay in float32.
    # definition of R^c that is measured at every layer during training: paper, official or unit.
    definition: Annotated[str, OneOf("definition", DEFINITIONS)] = "paper"
    probe: NotNegative[int] = 32  # number of validation pictures on which it is measured, 0 for none.
    # decides weights, order and augmentation.
    seed: Annotated[int, Bound(lambda seed: 0 <= seed < 2**32, "must be between 0 and 2³² − 1")] = 0
    expected: Expected = field(default_factory=Expected)  # what to expect.

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.model.name and not self.model.start:
            raise ValueError("a recipe needs model.name, or model.start for the network in a checkpoint")
