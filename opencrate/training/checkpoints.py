"""Checkpoints of a run: written whole or not at all, the newest whole one found again.

A checkpoint is written to a temporary name, flushed to the disk and renamed; then older ones go. So at any moment at
least one whole checkpoint lies in the folder once the first was written, and the newest two are kept, in case one is
damaged later.
"""

import errno
import logging
import os
import random
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

__all__ = ["Checkpoints", "is_out_of_memory", "random_states", "restore_random_states", "seed_process"]

log = logging.getLogger("opencrate")

State = dict[str, Any]
_FORMAT = 1


class Checkpoints:
    """The folder `checkpoints/` of a run: step-00000120.pt, and epoch-0010.pt for epochs that are to stay."""

    def __init__(self, directory: Path, keep: int = 2) -> None:
        self.directory, self.keep = directory, keep

    def save(self, state: State, step: int, epoch: int | None = None) -> Path:
        """Write a checkpoint; the oldest go, those of a given `epoch` stay."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for leftover in self.directory.glob(".*.tmp"):  # of a process that was killed while it wrote
            leftover.unlink()
        target = self.directory / f"step-{step:08d}.pt"
        scratch = self.directory / f".{target.name}.tmp"
        try:
            with scratch.open("wb") as file:
                torch.save({"format": _FORMAT, **state}, file)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(target)
            _flush_folder(self.directory)
        except (OSError, RuntimeError) as error:
            scratch.unlink(missing_ok=True)
            reason = "the disk is full" if _is_full(error) else " ".join(str(error).split())
            kept = self.steps()
            older = f"the one of step {kept[-1]} is intact" if kept else "there is none yet"
            raise OSError(f"the checkpoint of step {step} could not be written: {reason}; {older}") from error
        if epoch is not None:
            self._keep_epoch(target, epoch)
        for old in self.steps()[: -self.keep]:
            (self.directory / f"step-{old:08d}.pt").unlink(missing_ok=True)
        return target

    def _keep_epoch(self, target: Path, epoch: int) -> None:
        kept = self.directory / f"epoch-{epoch:04d}.pt"
        kept.unlink(missing_ok=True)
        try:
            kept.hardlink_to(target)
        except OSError:  # a file system without links
            shutil.copyfile(target, kept)

    def steps(self) -> list[int]:
        """The steps of which there is a checkpoint, oldest first."""
        found = (re.fullmatch(r"step-(\d+)\.pt", file.name) for file in self.directory.glob("step-*.pt"))
        return sorted(int(name[1]) for name in found if name)

    def newest(self) -> State | None:
        """The newest whole checkpoint; damaged ones are named in the log and set aside, and not if all are."""
        found = self.steps()
        for step in reversed(found):
            file = self.directory / f"step-{step:08d}.pt"
            try:
                _require_sums(file)
                state: State = torch.load(file, map_location="cpu", weights_only=True)
                if state.get("format") == _FORMAT and state.get("step") == step:
                    return state
                reason = "it is not one of this version"
            except Exception as error:  # a damaged file fails anywhere in the reader
                if _of_the_machine(error):
                    raise
                reason = " ".join(str(error).split())[:100]
            instead = "the one before it is used" if step != found[0] else "there is none before it"
            log.warning("the checkpoint %s is damaged (%s): %s", file, reason, instead)
            file.replace(file.with_suffix(".damaged"))
        if found:
            raise ValueError(f"no checkpoint in {self.directory} can be read; the same command again begins anew")
        return None

    def set_aside(self, step: int) -> None:
        """Take the checkpoint of a step out of use, if there is one and an older one to go back to."""
        if step in self.steps()[1:]:
            file = self.directory / f"step-{step:08d}.pt"
            file.replace(file.with_suffix(".suspect"))


def _of_the_machine(error: Exception) -> bool:
    """Whether reading failed for a reason that is not the file's. EINVAL is: damage may send the reader anywhere."""
    return is_out_of_memory(error) or (isinstance(error, OSError) and error.errno != errno.EINVAL)


def is_out_of_memory(error: BaseException) -> bool:
    """torch has an error of its own for a GPU, and none for the host."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(error)


def _is_full(error: BaseException | None) -> bool:
    """Whether the disk is full; torch hides the system's error behind one of its own."""
    while error is not None and getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT):
        error = error.__context__
    return error is not None


def _require_sums(file: Path) -> None:
    """Compare the sums that torch wrote with the content: its reader takes a flipped bit for a weight."""
    with zipfile.ZipFile(file) as archive:
        if (damaged := archive.testzip()) is not None:
            raise ValueError(f"the sum of {damaged} is wrong")


def _flush_folder(directory: Path) -> None:
    """Make a rename survive a power cut, where the system can."""
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def seed_process(*key: int) -> None:
    """Set every random generator of this process by the key."""
    python, numpy, ours = np.random.SeedSequence(key).generate_state(3).tolist()
    random.seed(python)
    np.random.seed(numpy)
    torch.manual_seed(ours)


def random_states(device: torch.device) -> State:
    """The states of every random generator of this process, as plain values."""
    name, keys, position, has_gauss, gauss = np.random.get_state()
    state = {
        "python": random.getstate(),
        "numpy": (str(name), torch.from_numpy(np.array(keys, dtype=np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_states(state: State, device: torch.device) -> None:
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
