import socket

import numpy as np
import pytest
from PIL import Image

from opencrate import save_pretrained
from opencrate.explorer.explore import Exploring, open_subject, serving

from ..networks import small
from ..threads import one_thread  # noqa: F401


def free_port() -> int:
    """A port that nobody listens on, and that the other workers' tests do not get either."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A small network on disk, in no run."""
    return str(save_pretrained(small(), tmp_path_factory.mktemp("network") / "model"))


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Six colourful pictures of other shapes than the network's."""
    folder, draw = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for i in range(6):
        pixels = draw.integers(0, 256, (6, 5 + i, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((30 + i, 24)).save(folder / f"{i}.png")
    return folder


@pytest.fixture(scope="session")
def settings(pictures):
    return Exploring(images=str(pictures), samples=6, batch=3, browser=False, port=free_port())


@pytest.fixture(scope="session")
def subject(checkpoint, settings):
    return open_subject(checkpoint, settings)


@pytest.fixture(scope="session")
def address(subject, settings):
    """Where a server answers, without a slash at the end; its reference pictures are measured."""
    pytest.importorskip("uvicorn")
    with serving(subject, settings) as address:
        subject.measure_reference().join()
        yield address


@pytest.fixture
def empty_address(subject, settings):
    """As `address`, of a server that keeps no pictures of other tests."""
    pytest.importorskip("uvicorn")
    with serving(subject, settings) as address:
        yield address
