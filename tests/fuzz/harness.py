"""Reads inputs in worker processes, where time, memory, code, network and written files are watched.

A case ends as `ok`, as one clean `sentence`, or `bad`. A sentence is what the command line prints for it: a ValueError
that this package raised, or an OSError of a file, on one printable line of at most 300 characters.
"""

import importlib
import io
import logging
import os
import random
import re
import resource
import shutil
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from . import mutations

SECONDS = 20
BYTES = 1 << 30  # above what the process had when it began to read
SENTENCE = 300
LINE = 600  # of what is printed or logged besides
STDERR = "stderr"  # the file of what a worker prints past Python
CANARY = "foreign_code"  # what a crafted input that holds code names in it
MODULES = (
    "checkpoints",
    "recipes",
    "pictures",
    "sets",
    "runs",
    "results",
)  # of this package, each with a table TARGETS
LATE = ("opencrate.training.run", "matplotlib.backends.backend_agg")  # what readers import when they are called

Make = Callable[[Path], Path]  # writes an input into an empty folder and returns what is to be read


@dataclass(frozen=True)
class Target:
    """A reader, with inputs that it takes (seeds) and such as it should refuse or survive (crafted)."""

    name: str
    read: Callable[[Path], Any]  # as a user would read it; text that it returns is taken to be printed
    seeds: dict[str, Make]
    crafted: dict[str, Make]
    mutate: Callable[[Path, random.Random], None] = mutations.mutate  # a copy of a seed, in place


@dataclass(frozen=True)
class Case:
    """One input of a target: `seed` and `crafted` by their names, `mutated` by a number."""

    target: str
    kind: str
    name: str
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Result:
    case: Case
    outcome: str
    detail: str = ""
    seconds: float = 0.0
    memory: int = 0

    def __str__(self) -> str:
        again = f"python -m tests.fuzz --only '{self.case.target}' --case '{self.case}' --seed {self.case.seed}"
        return f"{self.case.target}, {self.case}: {self.detail}\n  {again}"


def targets() -> dict[str, Target]:
    modules = [importlib.import_module(f".{name}", __package__) for name in MODULES]
    return {target.name: target for module in modules for target in module.TARGETS}


def fixed_cases(target: Target) -> list[Case]:
    """The seeds, which must be read, and the crafted inputs."""
    kinds = {"seed": target.seeds, "crafted": target.crafted}
    return [Case(target.name, kind, name) for kind, makers in kinds.items() for name in makers]


def mutated_cases(target: Target, seed: int, numbers: Iterable[int]) -> Iterator[Case]:
    return (Case(target.name, "mutated", str(number), seed) for number in numbers)


def run(cases: Iterable[Case], folder: Path, workers: int = 1, until: float = float("inf")) -> Iterator[Result]:
    """Read all cases, or those that are begun before `until` on the clock of `time.monotonic`."""
    waiting, lock, results = iter(cases), threading.Lock(), list[Result]()

    def work(number: int) -> None:
        worker = _Worker(folder / str(number))
        try:
            while time.monotonic() < until:
                with lock:
                    case = next(waiting, None)
                if case is None:
                    return
                result = worker.run(case)
                with lock:
                    results.append(result)
        finally:
            worker.end()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(workers)]
    for thread in threads:
        thread.start()
    while results or any(thread.is_alive() for thread in threads):
        while results:
            yield results.pop(0)
        time.sleep(0.05)


class _Worker:
    """A process that reads one case after another, and is replaced if it dies or takes too long."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: Any = None

    def run(self, case: Case) -> Result:
        if self.process is None or not self.process.is_alive():
            self._start()
        self.connection.send(case)
        try:
            if self.connection.poll(2 * SECONDS + 20):  # making the input takes time, too
                result: Result = self.connection.recv()
                return result
            return self._lost(case, f"not read after {2 * SECONDS + 20} s")
        except (EOFError, OSError):
            self.process.join(5)
            return self._lost(case, f"the process died ({self.process.exitcode})")

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload([*(f"{__package__}.{name}" for name in MODULES), *LATE])
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.folder), daemon=True)
        self.process.start()
        theirs.close()

    def _lost(self, case: Case, detail: str) -> Result:
        self.process.kill()
        self.process = None
        return Result(case, "bad", detail, SECONDS, 0)


def _serve(connection: Any, folder: Path) -> None:
    torch.set_num_threads(1)
    shutil.rmtree(folder, ignore_errors=True)  # of a process that died
    (folder / "seeds").mkdir(parents=True)
    known = targets()
    with (folder / STDERR).open("wb") as file:
        os.dup2(file.fileno(), 2)  # libraries in C print there
    sys.addaudithook(_watch)
    warnings.simplefilter("always")
    while True:
        case = connection.recv()
        connection.send(read_case(known[case.target], case, folder))


def read_case(target: Target, case: Case, folder: Path, with_traceback: bool = False) -> Result:
    """Make the input of a case, read it, and judge what came of it."""
    place = folder / "case"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    path = _input(target, case, folder / "seeds", place)
    logged, printed, stderr = _Log(), io.StringIO(), folder / STDERR
    known = stderr.stat().st_size if stderr.exists() else 0
    logging.getLogger().addHandler(logged)
    before = _reset_peak()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    if size := _status("VmSize"):
        resource.setrlimit(resource.RLIMIT_AS, (size + BYTES, limits[1]))
    error: BaseException | None = None
    _watched.begin(place)
    start = time.monotonic()
    try:
        with redirect_stdout(printed), redirect_stderr(printed), warnings.catch_warnings(record=True) as warned:
            value = target.read(path)
            if isinstance(value, str):
                printed.write(value)
    except BaseException as caught:
        error = caught
        if with_traceback:
            traceback.print_exception(caught)
    finally:
        seconds = time.monotonic() - start
        _watched.end()
        resource.setrlimit(resource.RLIMIT_AS, limits)
        logging.getLogger().removeHandler(logged)
    memory = max(0, _status("VmHWM") - before)
    lines = [*logged.lines, *printed.getvalue().split("\n"), *(str(warning.message) for warning in warned)]
    if stderr.exists():
        with stderr.open("rb") as file:
            file.seek(known)
            lines += file.read(1 << 20).decode(errors="replace").split("\n")
    problems = [*_watched.seen, *_unclean(error, place), *_ugly(lines)]
    if case.kind == "seed" and error is not None:
        problems.append(f"a valid input is refused: {error}")
    if seconds > SECONDS:
        problems.append(f"took {seconds:.0f} s")
    if memory > BYTES or _is_out_of_memory(error):
        problems.append(f"took {memory >> 20} MiB: {error!r:.200}")
    outcome = "bad" if problems else "ok" if error is None else "sentence"
    detail = "; ".join(problems) if problems else "" if error is None else str(error)
    return Result(case, outcome, ascii(detail)[1:-1][:2000], seconds, memory)


def _input(target: Target, case: Case, seeds: Path, place: Path) -> Path:
    if case.kind != "mutated":
        return getattr(target, {"seed": "seeds"}.get(case.kind, case.kind))[case.name](place)
    chance = random.Random(f"{case.seed}/{target.name}/{case.name}")
    name = chance.choice(list(target.seeds))
    made = seeds / target.name / name
    if not made.exists():
        made.mkdir(parents=True)
        (made / "path").write_text(str(target.seeds[name](made).relative_to(made)))
    path = Path((made / "path").read_text())
    shutil.copytree(made, place, dirs_exist_ok=True, symlinks=True, ignore=shutil.ignore_patterns("path"))
    target.mutate(place / path, chance)
    return place / path


# what a reader must not do


@dataclass
class _Watched:
    """What happened while a case was read that should not."""

    place: Path | None = None
    seen: list[str] = field(default_factory=list)

    def begin(self, place: Path) -> None:
        self.place, self.seen = place.resolve(), []

    def end(self) -> None:
        self.place = None


_watched = _Watched()
_STARTS = re.compile(r"subprocess\.|os\.(system|exec|fork|forkpty|posix_spawn|spawn|startfile)|pty\.|ctypes\.dlopen")
_NETWORK = ("socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request", "http.client.connect")


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched.place is None:
        return
    if _STARTS.match(event) and CANARY not in str(_watched.seen):
        _watched.seen.append(f"starts a process: {event} {str(arguments)[:100]}")
    elif event in _NETWORK or (event == "socket.connect" and arguments[0].family != socket.AF_UNIX):
        _watched.seen.append(f"goes to the network: {event} {str(arguments[1:])[:100]}")
    elif event == "pickle.find_class":
        _watched.seen.append(f"looks up a global of a pickle: {arguments[0]}.{arguments[1]}")
    elif event == "exec" and _is_foreign(arguments[0]):
        _watched.seen.append(f"runs code: {event} {str(arguments[0])[:100]}")
    elif event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
        file = Path(os.fsdecode(arguments[0])) if isinstance(arguments[0], str | bytes) else None
        if file and not file.absolute().is_relative_to(_watched.place) and not str(file).startswith(("/dev/", "/proc")):
            _watched.seen.append(f"writes {file}")


def _is_foreign(code: Any) -> bool:
    """Whether code is an input's: crafted inputs name the canary in theirs."""
    if isinstance(code, bytes):
        return CANARY.encode() in code
    if isinstance(code, str):
        return CANARY in code
    file = getattr(code, "co_filename", "")
    return str(_watched.place) in file or CANARY in str(getattr(code, "co_names", ""))


def foreign_code(*arguments: Any) -> None:
    """What code in a crafted input calls."""
    _watched.seen.append("runs code: the canary was called")


# what a reader says


def _unclean(error: BaseException | None, place: Path) -> Iterator[str]:
    """Why an error would not be one clean sentence."""
    if error is None:
        return
    text = str(error).replace(str(place), "")  # a path that the user gave
    frames = traceback.extract_tb(error.__traceback__)
    ours = any(part in frames[-1].filename for part in ("/opencrate/", "/reproduction/", "/benchmarks/"))
    if isinstance(error, OSError):
        is_sentence = ours or error.filename is not None
    else:
        is_sentence = ours and type(error) is ValueError
    if not is_sentence:
        yield f"raises {type(error).__name__} in {frames[-1].filename}:{frames[-1].lineno}: {text[:200]}"
    elif len(text) > SENTENCE:
        yield f"a sentence of {len(text)} characters: {text[:400]}"
    elif not text.isprintable() or not text:
        yield f"a sentence that is not printable: {text}"


def _ugly(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if not line.isprintable() and not line.replace("\t", " ").isprintable():
            yield f"prints control characters: {line[:200]}"
        elif len(line) > LINE:
            yield f"prints {len(line)} characters on a line: {line[:200]}"


def _is_out_of_memory(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError) or "allocate memory" in str(error).lower():
            return True
        error = error.__cause__ or error.__context__
    return False


class _Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += record.getMessage().split("\n")


# what a reader takes


def _reset_peak() -> int:
    """Forget how much memory the process has had; returns what it has."""
    file = Path("/proc/self/clear_refs")
    if file.exists():
        file.write_text("5")
    return _status("VmRSS")


def _status(name: str) -> int:
    """A figure of this process in bytes; 0 where the system has none."""
    file = Path("/proc/self/status")
    text = file.read_text() if file.exists() else ""
    match = re.search(rf"{name}:\s+(\d+) kB", text)
    return int(match[1]) << 10 if match else 0
