"""How a recipe is run on this machine. Nothing here changes what is computed, except rounding and dropout's draws."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..bounds import AtLeastOne, NotNegative, Settings

Switch = Literal["auto", "on", "off"]


@dataclass(frozen=True)
class Options(Settings):
    """How to run the recipe. This does not change what is computed, except rounding and the draws of dropout.

    Args:
        out: the run's folder, runs/NAME by default. The same command again continues where the run stopped.
        resume: continue the run in the folder; it is an error if there is none.
        root: where the pictures are on this machine, instead of the recipe's data.root.
        device: auto, cpu, cuda or cuda:N.
        processes: start this many processes with torchrun, which restarts them if one dies.
        parallel: ddp (every process holds the network) or fsdp (the layers are sharded over the processes).
        micro_batch: the most pictures that pass through the network at once on a process; the global batch stays.
        compile: compile the network with torch.compile, which needs a C++ compiler: auto (on CUDA in bf16 or fp16),
            on or off.
        graphs: record a step as CUDA graphs, so that the GPU never waits for the host: auto (on CUDA in bf16), on or
            off. Steps on several processes, in fp16, with objective.weight or with an operator that cannot be recorded
            run without graphs.
        attention: how attention is computed: symmetric (our kernel), sdpa (torch's), reference (as it is written) or
            auto (the faster one).
        workers: processes that decode pictures, for each training process; by default one for each core, at most 16.
        save_minutes: minutes between checkpoints within an epoch.
        save_steps: steps between checkpoints within an epoch, 0 for none.
        save_epochs: save a checkpoint after every n-th epoch, and at the end.
        keep_epochs: keep the checkpoint of every n-th epoch, 0 for none.
        evaluate_epochs: evaluate and show the layers after every n-th epoch, and at the end.
        log_steps: steps between lines of metrics.jsonl.
        tensorboard: write TensorBoard files, if TensorBoard is installed.
    """

    out: Path | None = None
    resume: bool = False
    root: str | None = None
    device: str = "auto"
    processes: AtLeastOne[int] = 1
    parallel: Literal["ddp", "fsdp"] = "ddp"
    micro_batch: AtLeastOne[int] = 512
    compile: Switch = "auto"
    graphs: Switch = "auto"
    attention: str = "auto"
    workers: NotNegative[int | None] = None
    save_minutes: NotNegative[float] = 10.0
    save_steps: NotNegative[int] = 0
    save_epochs: AtLeastOne[int] = 1
    keep_epochs: NotNegative[int] = 0
    evaluate_epochs: AtLeastOne[int] = 1
    log_steps: AtLeastOne[int] = 50
    tensorboard: bool = True

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
