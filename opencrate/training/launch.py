"""Starts the processes of a run on this machine, ends them together, and starts them again when one dies.

Each is told its place by the variables that torchrun sets, so that torchrun can do the same for several machines. It
cannot tell a user's mistake from a crash, though, and what it started goes on when it is killed itself.
"""

import math
import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

RESTARTS = 3
MISTAKE, STOPS = 2, {128 + signal.SIGINT, 128 + signal.SIGTERM}  # exit codes of processes that mean to end
GRACE_SECONDS = 5.0  # for the other processes when one has ended, before they are killed
STOP_SECONDS = 120.0  # for all to end after a signal, with a checkpoint
TEXT = 4000  # characters of a traceback that are kept
PROCESS_BYTES = 1 << 30  # of memory that a process takes at least

Tell = Callable[[str], None]
Ending = tuple[int, str]  # an exit code, and what is to be said of it


def is_worker() -> bool:
    """Whether this process is one of several that torchrun or `launch` has started."""
    return "WORLD_SIZE" in os.environ


def is_main() -> bool:
    return os.environ.get("RANK", "0") == "0"


def launch(run: Callable[[list[str], Tell], None], arguments: list[str], processes: int, tell: Tell) -> NoReturn:
    """Call `run` in several processes until they end as one: well, by a mistake, by a signal, or by crashes."""
    spawn, workers, signals = multiprocessing.get_context("spawn"), list[Any](), list[int]()

    def stop(number: int, frame: Any) -> None:
        signals.append(number)
        for worker in workers:  # SIGTERM also for Ctrl-C, which they got themselves: a second one stops at once
            if worker.is_alive():
                worker.terminate()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // processes)))
    for left in reversed(range(RESTARTS + 1)):
        port, pipes = _free_port(), [spawn.Pipe(duplex=False) for _ in range(processes)]
        workers[:] = [spawn.Process(target=_work, args=(run, arguments, sender)) for _, sender in pipes]
        place = {
            "WORLD_SIZE": processes,
            "LOCAL_WORLD_SIZE": processes,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        for rank, worker in enumerate(workers):
            if not signals:
                with _environment(place | {"RANK": rank, "LOCAL_RANK": rank}):
                    worker.start()
        codes = _wait([worker for worker in workers if worker.pid is not None])
        code, text = _ending(codes, [_said(receiver) for receiver, _ in pipes])
        if signals and code not in (0, MISTAKE):
            code, text = 128 + signals[0], text if code in STOPS else "stopped"
        if text and (code in STOPS or code == MISTAKE):
            tell(text)
        if code in (0, MISTAKE, *STOPS):
            sys.exit(code)
        tell(f"{text}{'; all processes are started again' if left else ''}")
    sys.exit(1)


def _wait(workers: list[Any]) -> list[int]:
    """The exit codes of those that ended by themselves: soon after one has failed the others are killed."""
    running, deadline, codes = list(workers), math.inf, list[int]()
    while running and time.monotonic() < deadline:
        wait([worker.sentinel for worker in running], None if math.isinf(deadline) else deadline - time.monotonic())
        ends = [(worker, worker.exitcode) for worker in running]  # asked once: it may end between two questions
        codes += [code for _, code in ends if code is not None]
        running = [worker for worker, code in ends if code is None]
        if math.isinf(deadline) and any(codes):
            deadline = time.monotonic() + (STOP_SECONDS if set(codes) <= {0, *STOPS} else GRACE_SECONDS)
    for worker in running:
        worker.kill()
        worker.join()
    return codes


def _ending(codes: list[int], said: list[Ending]) -> Ending:
    """What the ends of the processes come to: a mistake explains the crashes that follow from it, and so on."""
    if not any(codes) and all(ending[0] == 0 for ending in said):
        return 0, ""
    for wanted in ({MISTAKE}, STOPS):
        if ending := next((ending for ending in said if ending[0] in wanted), None):
            return ending
    if (killed := min(codes, default=0)) < 0:
        return killed, f"a process was ended by signal {-killed}"
    return next((ending for ending in said if ending[0]), (1, "a process failed at its end"))


def _said(receiver: Connection) -> Ending:
    try:
        if receiver.poll():
            ending: Ending = receiver.recv()
            return ending
    except EOFError:  # it was killed amid its words
        pass
    return 1, "a process ended without a word"


@contextmanager
def _environment(values: dict[str, Any]) -> Iterator[None]:
    """Processes that are started inside have these variables."""
    before = dict(os.environ)
    os.environ |= {name: str(value) for name, value in values.items()}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


def _work(run: Callable[[list[str], Tell], None], arguments: list[str], sender: Connection) -> None:
    """One process. What it has to say at its end is for the one that started it, which says it once."""
    words: list[str] = []
    try:
        run(arguments, words.append)
        ending = 0, ""
    except SystemExit as ended:
        ending = (ended.code, words[-1] if words else "") if isinstance(ended.code, int) else (0, "")
    except Exception:
        ending = 1, traceback.format_exc()[-TEXT:].rstrip()
    with suppress(BrokenPipeError):  # nobody is left to be told
        sender.send(ending)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(ending[0])  # to free what torch holds takes seconds, in which a process group may abort


def require_room(processes: int, device: str) -> None:
    """Refuse more processes than fit on this machine: one for each GPU, or one for each core with a GiB of memory."""
    room = {"cores": cores()}
    if device != "cpu":
        import torch

        if torch.cuda.is_available():
            room = {"GPUs": torch.cuda.device_count()}
    if (free := _free_memory()) is not None:
        room[f"GiB of free memory, of which each takes {PROCESS_BYTES >> 30}"] = free // PROCESS_BYTES
    what = min(room, key=lambda what: room[what])
    if processes > room[what]:
        raise ValueError(
            f"--processes {processes} does not fit on this machine, which has {room[what]} {what}:"
            f" use --processes {max(1, room[what])}"
        )


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free_memory() -> int | None:
    """Bytes that new processes can take, in the container if there is one; None where the system does not say."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return None
    try:
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        return min(free, limit - used)
    except (OSError, ValueError):  # no container, or "max": without a limit
        return free


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
