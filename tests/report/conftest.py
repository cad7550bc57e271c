import numpy as np
import pytest
from PIL import Image

from opencrate import save_pretrained
from opencrate.report import Analysis, analyze

from ..networks import small
from ..threads import one_thread  # noqa: F401


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A small network on disk, in no run."""
    return str(save_pretrained(small(), tmp_path_factory.mktemp("network") / "model"))


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Nine colourful pictures of other shapes than the network's, one in a folder below, and a file that is none."""
    folder = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(0)
    for i in range(9):
        pixels = draw.integers(0, 256, (6, 5 + i, 3), dtype=np.uint8)
        place = folder / "below" if i == 8 else folder
        place.mkdir(exist_ok=True)
        Image.fromarray(pixels).resize((30 + i, 24)).save(place / f"{i}.png")
    (folder / "notes.txt").write_text("not a picture")
    return folder


@pytest.fixture(scope="session")
def report(checkpoint, pictures, tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "analysis"
    return analyze(checkpoint, Analysis(images=str(pictures), samples=9, batch=3, device="cpu", out=out))
