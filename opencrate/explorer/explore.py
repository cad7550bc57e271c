"""`opencrate explore`: opens the network, starts the server on this machine, and says where the page is."""

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import torch

from ..run_folder import run_of
from ..study import open_study
from .subject import Subject

__all__ = ["Exploring", "explore", "open_subject", "start"]

log = logging.getLogger("opencrate")

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Exploring:
    """How the explorer runs.

    Args:
        images: folder of pictures for samples and the reference set; the run's own validation pictures, unless told.
        recipe: recipe whose pictures are taken.
        data: data set, by timm's name for it, whose pictures are taken.
        root: where that set lies.
        against: another run or checkpoint to compare with; the untrained network and kept epochs are there anyway.
        samples: pictures of the reference set.
        batch: pictures that are measured together.
        host: address to listen on. Another than 127.0.0.1 lets everyone who reaches this machine use the page.
        port: the first port to try.
        browser: open the page in a browser.
    """

    images: str | None = None
    recipe: str | None = None
    data: str | None = None
    root: str | None = None
    against: str | None = None
    samples: int = 32
    batch: int = 8
    host: str = "127.0.0.1"
    port: int = 7860
    browser: bool = True

    def __post_init__(self) -> None:
        for name in ("samples", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def in_python(self) -> str:
        """What decides which network and pictures are explored, as it is written in Python."""
        decisive = ("images", "recipe", "data", "root", "against", "samples")
        given = {name: getattr(self, name) for name in decisive if getattr(self, name) != getattr(type(self), name)}
        return f"Exploring({', '.join(f'{name}={value!r}' for name, value in given.items())})"


def explore(source: str, settings: Exploring) -> None:
    """Serve the page until it is stopped."""
    subject = open_subject(source, settings)
    try:
        address = start(subject, settings)
        print(f"The explorer is at {address} (Ctrl-C stops it)", flush=True)
        threading.Event().wait()
    finally:
        subject.close()


def open_subject(source: str, settings: Exploring) -> Subject:
    """The network and its pictures; one that comes without pictures gets scikit-learn's two photos."""
    given: Any = settings
    if run_of(source) is None and not (settings.images or settings.recipe or settings.data):
        given = replace(settings, images=_photos())
        log.warning("%s tells no pictures, so the reference set is two photos: --images FOLDER gives others", source)
    study = open_study(source, given, torch.device("cpu"))
    return Subject(study, settings.against, settings.in_python())


def start(subject: Subject, settings: Exploring) -> str:
    """Start the server in the background and return the page's address."""
    try:
        from .server import build
    except ImportError as error:
        raise ValueError("the explorer needs gradio: pip install 'opencrate[explore]'") from error
    local = settings.host in LOOPBACK
    if not local:
        log.warning("listening on %s: everyone who can reach this machine can use the page", settings.host)
    app = build(subject, (*LOOPBACK, "[::1]") if local else None)
    with _event_loop():
        _, address, _ = app.launch(
            server_name=settings.host,
            server_port=_free(settings.host, settings.port),
            inbrowser=settings.browser,
            quiet=True,
            share=False,
            prevent_thread_lock=True,
            ssr_mode=False,
            enable_monitoring=False,
        )
    subject.measure_reference()
    return str(address)


@contextmanager
def _event_loop() -> Iterator[None]:
    """gradio asks for this thread's event loop, and where there is none it makes one for every lock and leaves it."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        yield
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _free(host: str, first: int) -> int:
    """The first port from `first` on that nobody listens on."""
    for port in range(first, first + 100):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise ValueError(f"no port from {first} to {first + 99} is free on {host}")


def _photos() -> str:
    return str(files("sklearn.datasets.images"))
