"""How a recipe is run on this machine. Nothing here changes what is computed, except rounding and dropout's draws."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..bounds import AtLeastOne, NotNegative, Settings

Switch = Literal["auto", "on", "off"]


@dataclass(frozen=True)
class Options(Settings):
    """How to run the recipe. This does not change what is computed, except rounding and the draws of dropout."""

    # the run's folder, runs/NAME by default. The same command again continues where the run stopped.
    out: Path | None = None
    resume: bool = False  # continue the run in the folder; it is an error if there is none.
    root: str | None = None  # where the pictures are on this machine, instead of the recipe's data.root.
    device: str = "auto"  # auto, cpu, cuda or cuda:N.
    processes: AtLeastOne[int] = 1  # start this many processes on this machine, and all of them again if one dies.
    # ddp (every process holds the network) or fsdp (the layers are sharded over the processes).
    parallel: Literal["ddp", "fsdp"] = "ddp"
    # the most pictures that pass through the network at once on a process; the global batch stays.
    micro_batch: AtLeastOne[int] = 512
    # compile the network with torch.compile, which needs a C++ compiler: auto (on CUDA in bf16 or fp16), on or off.
    compile: Switch = "auto"
    # record a step as CUDA graphs, so that the GPU never waits for the host: auto (on CUDA in bf16), on or off. Steps
    # on several processes, in fp16, with objective.weight or with an operator that cannot be recorded run without
    # graphs.
    graphs: Switch = "auto"
    # how attention is computed: symmetric (our kernel), sdpa (torch's), reference (as it is written) or auto (the
    # faster one).
    attention: str = "auto"
    # processes that decode pictures, for each training process; by default one for each core, at most 16.
    workers: NotNegative[int | None] = None
    save_minutes: NotNegative[float] = 10.0  # minutes between checkpoints within an epoch.
    save_steps: NotNegative[int] = 0  # steps between checkpoints within an epoch, 0 for none.
    save_epochs: AtLeastOne[int] = 1  # save a checkpoint after every n-th epoch, and at the end.
    keep_epochs: NotNegative[int] = 0  # keep the checkpoint of every n-th epoch, 0 for none.
    evaluate_epochs: AtLeastOne[int] = 1  # evaluate and show the layers after every n-th epoch, and at the end.
    log_steps: AtLeastOne[int] = 50  # steps between lines of metrics.jsonl.
    tensorboard: bool = True  # write TensorBoard files, if TensorBoard is installed.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out is not None:
            object.__setattr__(self, "out", Path(self.out))  # a string will do

    def compiles(self, device: str, precision: str) -> bool:
        """Whether the network is compiled on a type of device; in fp32 compiling takes longer than it saves."""
        return self.compile == "on" or (self.compile == "auto" and device == "cuda" and precision != "fp32")

    def records(self, device: str, precision: str) -> bool:
        """Whether steps are recorded as CUDA graphs, where they can be."""
        return self.graphs == "on" or (self.graphs == "auto" and device == "cuda" and precision != "fp32")
