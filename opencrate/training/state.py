"""The state of a run: its progress, weights, optimiser and random generators, to and from a checkpoint.

A checkpoint holds full tensors on any number of processes: what DDP or FSDP distributed is gathered when it is written
and distributed again when it is read, also on another number of processes.
"""

from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from pydantic import TypeAdapter
from timm.utils import ModelEmaV3
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from ..checkpoints.key_maps import current_checkpoint
from ..distributed import World
from ..randomness import random_states, restore_random_states, seed_process
from ..run_records import Count, Measure, Text, checked

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


@dataclass
class Progress:
    """How far a run has come. The order of the images, their crops and the learning rate follow from `step`."""

    step: Count = 0  # steps done
    bad_steps: Count = 0  # in a row, up to now
    skipped: Count = 0
    seconds: float = 0.0
    best: dict[Text, Measure] = field(default_factory=dict)  # metrics of the best network
    last_validation: dict[Text, Measure] = field(default_factory=dict)
    recorded: Count = 0  # lines of metrics.jsonl, without those of an epoch's time, which is not always known

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Progress":
        """The progress among the values of a checkpoint, also of one of an earlier version."""
        values = {"last_validation": values.get("last"), "recorded": 0, **values}
        known: Progress = checked({field.name: values[field.name] for field in fields(cls)}, TypeAdapter(cls))
        return known


@dataclass
class TrainedState:
    """Everything that training changes, besides the progress."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    ema: ModelEmaV3 | None
    world: World

    def gather(self, progress: Progress) -> dict[str, Any]:
        """The content of a checkpoint, full on the main process; all processes must call it."""
        return {
            **asdict(progress),
            "model": full_weights(self.model),
            "optimizer": get_optimizer_state_dict(self.model, self.optimizer, options=FULL),
            "scaler": self.scaler.state_dict(),
            "ema": self.ema.module.state_dict() if self.ema else None,
            "random": self.world.gather(random_states(self.world.device)),
        }

    def restore(self, state: dict[str, Any], seed: int) -> dict[str, Any]:
        """Restore what `gather` returned; only the main process needs to have it, and all must call this.

        Everything but the weights and the optimiser's state comes back on every process.
        """
        state = current_checkpoint(state)
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=self.world.size > 1)
        set_model_state_dict(self.model, state.get("model", {}), options=options)
        set_optimizer_state_dict(self.model, self.optimizer, state.get("optimizer", {}), options=options)
        rest = self.world.on_main(lambda: {key: state[key] for key in state.keys() - {"model", "optimizer"}})
        random = rest["random"]
        if rest["scaler"]:
            self.scaler.load_state_dict(rest["scaler"])
        if self.ema:
            self.ema.module.load_state_dict(rest["ema"])
        if len(random) == self.world.size:
            restore_random_states(random[self.world.rank], self.world.device)
        else:  # the checkpoint was written by another number of processes
            seed_process(seed, self.world.rank, rest["step"])
        return rest


def full_weights(model: nn.Module) -> dict[str, Any]:
    """The weights of a network as on one process, on the main process; all processes must call it."""
    return get_model_state_dict(model, options=FULL)
