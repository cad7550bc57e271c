"""`opencrate explore`: opens the network, starts the server on this machine, and prints the page's address."""

import logging
import socket
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from .. import shipped
from ..run_folder import run_of
from ..settings import Exploring
from ..study import open_study
from .subject import Subject

log = logging.getLogger("opencrate")

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def explore(source: str, settings: Exploring) -> None:
    """Serve the page until it is stopped."""
    subject = open_subject(source, settings)
    with serving(subject, settings) as address:
        try:
            subject.measure_reference()
            print(f"The explorer is at {address} (Ctrl-C stops it)", flush=True)
            if settings.browser:
                webbrowser.open(address)
            threading.Event().wait()
        finally:
            subject.close()


def open_subject(source: str, settings: Exploring) -> Subject:
    """The network and its pictures; the photos that come with the package where no others are known."""
    given: Any = settings
    if run_of(source) is None and not settings.named_pictures():
        given = replace(settings, images=str(shipped.PHOTOS))
        log.warning("no pictures are known for %s, so opencrate's photos are used; pass --images for others", source)
    study = open_study(source, given, torch.device("cpu"))
    return Subject(study, settings.against, settings.in_python())


@contextmanager
def serving(subject: Subject, settings: Exploring) -> Iterator[str]:
    """The page's address, while a server in the background answers there."""
    try:
        import uvicorn

        from .server import build
    except ImportError as error:
        raise ValueError("the explorer needs starlette and uvicorn: pip install 'opencrate[explore]'") from error
    local = settings.host in LOOPBACK
    if not local:
        log.warning("listening on %s: everyone who can reach this machine can use the page", settings.host)
    listening = _listen(settings.host, settings.port)
    config = uvicorn.Config(
        build(subject, (*LOOPBACK, "[::1]") if local else None),
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],), name="server", daemon=True)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield _address(settings.host, listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join()


def _listen(host: str, first: int) -> socket.socket:
    """A socket that listens on the first free port from `first` on."""
    for port in range(first, min(first + 100, 2**16)):
        try:
            return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError:
            continue
    raise ValueError(f"no port from {first} to {first + 99} is free on {host}")


def _address(host: str, port: int) -> str:
    if host in ("0.0.0.0", "::"):
        host = "localhost"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
