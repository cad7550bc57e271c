"""Signals: SIGINT and SIGTERM stop a run after the current step, with a checkpoint."""

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

log = logging.getLogger("opencrate")


class Stopped(KeyboardInterrupt):
    """The run was asked to stop by a signal, and saved a checkpoint."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"stopped at step {step}; a checkpoint is saved, and the same command goes on from there")
        self.code = 128 + number


class StopRequest:
    """Whether a signal has asked this process to stop, and which."""

    def __init__(self) -> None:
        self.number: int | None = None

    def stopped(self, step: int) -> Stopped:
        """The exception to raise; without a signal of its own, this process follows one that got SIGTERM."""
        return Stopped(self.number or signal.SIGTERM, step)

    @contextmanager
    def listening(self, announce: bool) -> Iterator[None]:
        """Handle signals inside; a second Ctrl-C stops at once.

        A second SIGTERM does not: a scheduler signals every process, and torchrun then forwards its own signal.
        """

        def handle(number: int, frame: FrameType | None) -> None:
            if self.number is None and announce:
                again = "; once more to stop at once" if number == signal.SIGINT else ""
                log.warning("stopping after this step, with a checkpoint%s", again)
            self.number = self.number or number
            if number == signal.SIGINT:
                signal.signal(number, previous[number])

        previous: dict[Any, Any] = {}
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, handle)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
