"""How a recipe is run here and now. None of it changes what is computed, but for rounding and dropout's draws."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """How to run it: this changes nothing of what is computed, but for rounding and the draws of dropout.

    Args:
        out: the run's folder; runs/NAME unless given. The same command again goes on where it stopped.
        resume: go on with the run in the folder; an error if there is none.
        device: auto, cpu, cuda or cuda:N.
        processes: start this many processes with torchrun, which starts them again if one dies; 1 is this process.
        parallel: ddp (the network whole on each process) or fsdp (its layers in shards).
        micro_batch: most pictures that pass through the network at once on a process; the global batch stays.
        workers: processes that decode pictures, for each training process; none for as many as there are cores, to 16.
        save_minutes: minutes between checkpoints within an epoch.
        save_steps: steps between checkpoints within an epoch, 0 for none.
        save_epochs: save a checkpoint after every n-th epoch, and at the end.
        keep_epochs: keep the checkpoint of every n-th epoch for good, 0 for none.
        evaluate_epochs: evaluate and show the layers after every n-th epoch, and at the end.
        log_steps: steps between lines of metrics.jsonl.
        tensorboard: write TensorBoard files, where it is installed.
    """

    out: Path | None = None
    resume: bool = False
    device: str = "auto"
    processes: int = 1
    parallel: Literal["ddp", "fsdp"] = "ddp"
    micro_batch: int = 512
    workers: int | None = None
    save_minutes: float = 10.0
    save_steps: int = 0
    save_epochs: int = 1
    keep_epochs: int = 0
    evaluate_epochs: int = 1
    log_steps: int = 50
    tensorboard: bool = True

    def __post_init__(self) -> None:
        if self.out is not None:
            object.__setattr__(self, "out", Path(self.out))  # a string will do
        for name in ("processes", "micro_batch", "save_epochs", "evaluate_epochs", "log_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("save_minutes", "save_steps", "keep_epochs", "workers"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
