"""Curves for TensorBoard: an event file, written at once by the thread that trains.

TensorBoard's own writer has a thread, which prints a traceback when the disk is full.
"""

import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any


def open_curves(folder: Path, step: int) -> "Curves | None":
    """Curves that go on from `step`; None if TensorBoard is not installed."""
    try:
        return Curves(folder, step)
    except ImportError:
        return None


class Curves:
    """An event file in `folder`. What earlier files say of later steps than `step` is not shown any more."""

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}.{step}"
        self._file = (folder / name).open("wb")
        self._records: Any = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")
        self._write(step=step + 1 if step else 0, session_log=SessionLog(status=SessionLog.START))

    def add(self, values: dict[str, float], step: int) -> None:
        summary = self._summary(
            value=[self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        )
        self._write(step=step, summary=summary)

    def close(self) -> None:
        with suppress(OSError):  # on a full disk the error has been raised before
            self._file.close()

    def _write(self, **content: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **content).SerializeToString())
        self._records.flush()
