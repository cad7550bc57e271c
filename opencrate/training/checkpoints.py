"""Checkpoints of a run: written atomically, and the newest intact one found again.

A checkpoint is written under a temporary name, flushed to disk and renamed; only then are older ones deleted. So at any
moment after the first the folder holds at least one complete checkpoint. The newest two are kept, in case one is
damaged later.
"""

import errno
import logging
import shutil
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..checkpoints.torch_files import read_all
from ..errors import one_line
from ..files import reason_not_written, replacing
from ..run_folder import numbered, numbered_name

log = logging.getLogger("opencrate")

State = dict[str, Any]
_FORMAT = 1


class Checkpoints:
    """The folder `checkpoints/` of a run: step-00000120.pt, and epoch-0010.pt for epochs that are kept for good."""

    def __init__(self, directory: Path, keep: int = 2) -> None:
        self.directory, self.keep = directory, keep

    def save(self, state: State, step: int, epoch: int | None = None) -> Path:
        """Write a checkpoint and delete the oldest; that of an `epoch` is kept for good.

        A gradient may be infinite though the loss is not, and no checkpoint may keep the weights that it leaves behind.
        """
        if not all(bool(leaf.isfinite().all()) for leaf in tree_leaves(state) if isinstance(leaf, Tensor)):
            raise ValueError(
                f"weights or momenta are no longer finite at step {step}, though the loss was: {self.last_good()};"
                " --optim.clip 1 skips steps whose gradient is not finite"
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        target = self._file(step)
        try:
            with replacing(target) as file:
                torch.save({"format": _FORMAT, **state}, file)
            self.tidy(step, epoch)
        except (OSError, RuntimeError) as error:
            reason = f"{reason_not_written(error)}; {self.last_good()}"
            raise OSError(f"the checkpoint of step {step} could not be written: {reason}") from error
        return target

    def tidy(self, step: int, epoch: int | None = None) -> None:
        """What follows the writing of a checkpoint, also if a kill came between: keep its epoch, delete what is old."""
        if epoch is not None:
            self._keep_epoch(self._file(step), epoch)
        for leftover in self.directory.glob(".*.tmp"):
            leftover.unlink()
        for old in self.steps()[: -self.keep]:
            self._file(old).unlink(missing_ok=True)

    def _file(self, step: int) -> Path:
        return self.directory / numbered_name("step", step)

    def _keep_epoch(self, target: Path, epoch: int) -> None:
        kept = self.directory / numbered_name("epoch", epoch)
        if kept.exists() and kept.samefile(target):
            return
        scratch = kept.with_name(f".{kept.name}.tmp")
        scratch.unlink(missing_ok=True)
        try:
            scratch.hardlink_to(target)
        except OSError:  # a file system without links
            with target.open("rb") as content, replacing(kept) as file:
                shutil.copyfileobj(content, file)
        else:
            scratch.replace(kept)

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, oldest first."""
        return list(numbered(self.directory, "step"))

    def last_good(self) -> str:
        """The end of an error's sentence: to which checkpoint the run can go back."""
        steps = self.steps()
        return f"the last good checkpoint, of step {steps[-1]}, is kept" if steps else "there is no checkpoint yet"

    def newest(self) -> State | None:
        """The newest intact checkpoint; damaged ones are logged and renamed. An error if all are damaged."""
        files = numbered(self.directory, "step")
        for step, file in reversed(files.items()):
            try:
                with zipfile.ZipFile(file):  # torch's older format has no checksums
                    state: State = read_all(file)
                if state.get("format") != _FORMAT or state.get("step") != step:
                    raise ValueError("it is not a checkpoint of this version")
                return state
            except Exception as error:  # a damaged file fails anywhere in the reader
                if _is_machine_error(error):
                    raise
                reason = one_line(str(error), 100)
            instead = "the one before it is used" if step != min(files) else "there is none before it"
            log.warning("the checkpoint %s is damaged (%s): %s", file, reason, instead)
            file.replace(file.with_suffix(".damaged"))
        if files:
            raise ValueError(f"no checkpoint in {self.directory} can be read; the same command again begins anew")
        return None

    def set_aside(self, step: int) -> None:
        """Rename the checkpoint of a step so that it is not used, if there is an older one to go back to."""
        if step in self.steps()[1:]:
            file = self._file(step)
            file.replace(file.with_suffix(".suspect"))


def _is_machine_error(error: Exception) -> bool:
    """Whether reading failed though the file may be intact. EINVAL means damage, which sends the reader anywhere."""
    return is_out_of_memory(error) or (isinstance(error, OSError) and error.errno != errno.EINVAL)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out; torch has a class of error for a GPU's memory, and none for the host's."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(error)
