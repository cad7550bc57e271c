"""Copies of what lies at remote addresses: http and https by urllib, others by fsspec. A read is tried again."""

import logging
import threading
import time
import urllib.error
import urllib.request
from typing import Any, BinaryIO

__all__ = ["fetch", "is_remote"]

log = logging.getLogger("opencrate")

ATTEMPTS, PATIENCE = 3, 1.0  # of a remote read; seconds before the second, doubled before each that follows


def is_remote(address: str) -> bool:
    return "://" in address


def fetch(address: str, file: BinaryIO, stop: threading.Event | None = None) -> None:
    """Copy what is at a remote address, in ATTEMPTS attempts; FileNotFoundError or PermissionError at once."""
    for attempt in range(ATTEMPTS):
        file.seek(0)
        file.truncate()
        try:
            return _copy_once(address, file, stop or threading.Event())
        except (FileNotFoundError, PermissionError) as error:
            kind = FileNotFoundError if isinstance(error, FileNotFoundError) else PermissionError
            raise kind(f"{address} cannot be read: {_reason(error)}") from error
        except (ImportError, ValueError) as error:  # a filesystem that fsspec does not have
            raise ValueError(f"{address} cannot be read: {_reason(error)}") from error
        except Exception as error:  # every filesystem of fsspec has errors of its own
            if attempt == ATTEMPTS - 1 or (stop and stop.is_set()):
                raise OSError(f"{address} cannot be read, in {attempt + 1} attempts: {_reason(error)}") from error
            log.warning("reading %s again: %s", address, _reason(error))
            time.sleep(PATIENCE * 2**attempt)
    return None


def _copy_once(address: str, file: BinaryIO, stop: threading.Event) -> None:
    source, expected = _open_remote(address)
    copied = 0
    with source:
        while content := source.read(2**20):
            if stop.is_set():
                raise OSError("it is no longer wanted")
            copied += file.write(content)
    file.flush()
    if expected is not None and copied != expected:
        raise OSError(f"the connection ended after {copied} of {expected} bytes")


def _open_remote(address: str) -> tuple[Any, int | None]:
    """A stream of bytes, and how many there are, if that is told."""
    if not address.startswith(("http://", "https://")):
        import fsspec

        return fsspec.open(address, "rb").open(), None
    try:
        response = urllib.request.urlopen(address, timeout=60)
    except urllib.error.HTTPError as error:
        error.close()
        kind = {401: PermissionError, 403: PermissionError, 404: FileNotFoundError, 410: FileNotFoundError}
        raise kind.get(error.code, OSError)(f"the server answers {error.code} {error.reason}") from None
    length = response.headers.get("Content-Length")
    return response, int(length) if length else None


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
