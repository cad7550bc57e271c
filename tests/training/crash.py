"""A run that is killed right before its n-th change of the file system, for every n."""

import io
import os
import signal
import sys
from pathlib import Path

import safetensors.torch
import torch

from opencrate.recipes import Recipe
from opencrate.training import Options, train
from opencrate.training.journal import Journal
from tests.runs import FORKS

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = ("os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.truncate", "os.symlink", "shutil.copymode")


def killed_at(number: int, recipe: Recipe, options: Options) -> tuple[int, str]:
    """Run until before change `number`, counted from 0; returns the exit code and what the change would have been."""
    receiver, sender = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=_killed_at, args=(number, recipe, options, sender))
    process.start()
    sender.close()
    process.join()
    return process.exitcode, receiver.recv() if process.exitcode else ""


def _killed_at(number: int, recipe: Recipe, options: Options, sender) -> None:
    torch.set_num_threads(1)
    folder, counter = str(options.out), iter(range(10**9))

    def change(what: str) -> None:
        if next(counter) == number:
            sender.send(what)
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple) -> None:
        """Python says all that it changes but what it writes to a file that is open."""
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            if str(arguments[0]).startswith(folder):
                change(f"open {Path(arguments[0]).name}")
        elif event in CHANGES and str(arguments[0]).startswith(folder):
            change(f"{event} {Path(str(arguments[0])).name}")

    def record(self: Journal, kind: str, step: int, **values: object) -> None:
        """Before a line, and amid it."""
        change(f"a {kind} line of step {step}")
        half = _Half(self.file, lambda: change(f"the rest of a {kind} line of step {step}"))
        whole, self.file = self.file, half  # type: ignore[assignment]
        try:
            write_line(self, kind, step, **values)
        finally:
            self.file = whole

    def save_file(weights: dict, file: Path, **how: object) -> None:
        """In Rust, whose changes Python does not see."""
        change(f"{Path(file).name} is opened")
        Path(file).write_bytes(b"half")
        change(f"{Path(file).name} is written")
        save_whole(weights, file, **how)

    write_line, Journal.record = Journal.record, record
    save_whole = safetensors.torch.save_file
    safetensors.torch.save_file = save_file
    sys.modules["opencrate.checkpoints.intact"].save_file = save_file  # type: ignore[attr-defined]
    sys.addaudithook(hook)
    train(recipe, options)


class _Half(io.RawIOBase):
    """Writes the first half of a line; the caller, as for any short write, then writes the rest."""

    def __init__(self, file, between) -> None:
        self.inner, self.between, self.name = file, between, file.name

    def write(self, line: bytes) -> int:
        if line.startswith(b"{") and len(line) > 1:
            return self.inner.write(line[: len(line) // 2])
        self.between()
        return self.inner.write(line)
