"""`opencrate explore`: opens the network, starts the server on this machine, and prints the page's address."""

import errno
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
    are_ours = run_of(source) is None and not settings.named_pictures()
    given: Any = replace(settings, images=str(shipped.PHOTOS)) if are_ours else settings
    study = open_study(source, given, torch.device("cpu"))
    if are_ours:
        log.warning("no pictures are known for %s, so opencrate's photos are used; pass --images for others", source)
    return Subject(study, settings)


@contextmanager
def serving(subject: Subject, settings: Exploring) -> Iterator[str]:
    """The page's address, while a server in the background answers there."""
    try:
        import uvicorn

        from .access import WILDCARDS, access_at, in_address
        from .connections import Connections
        from .server import build
    except ImportError as error:
        raise ValueError("the explorer needs starlette and uvicorn: pip install 'opencrate[explore]'") from error
    listening = _listen(settings.host, settings.port)
    port = listening.getsockname()[1]
    access, connections = access_at(settings, port), Connections()
    if access.needs_token:
        log.warning(
            "listening on %s: everyone who has the complete address can use the page, and others on the network can"
            " read what is sent%s",
            settings.host,
            "; from another machine, write this one's name for localhost" if settings.host in WILDCARDS else "",
        )
    protocol: Any = connections.accept
    config = uvicorn.Config(
        build(subject, access, connections),
        http=protocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,  # a visitor's address is not what a header says
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],), name="server", daemon=True)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        host = "localhost" if settings.host in WILDCARDS else in_address(settings.host)
        yield f"http://{host}:{port}" + (f"/?token={access.token}" if access.needs_token else "")
    finally:
        server.should_exit = True
        thread.join()


def _listen(host: str, first: int) -> socket.socket:
    """A socket that listens on the first free port from `first` on."""
    for port in range(first, min(first + 100, 2**16)):
        try:
            return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            if error.errno not in (None, errno.EADDRINUSE):  # the next port is no better
                reason = str(error.strerror).partition(" (while")[0]
                raise ValueError(f"cannot listen on {host}, port {port}: {reason}") from error
    raise ValueError(f"no port from {first} to {first + 99} is free on {host}")
