"""Pictures that visitors send: what is made of good ones, and that nothing but a sentence is made of others."""

import re
import threading
import time
import warnings
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

from opencrate.explorer import uploads
from opencrate.explorer.uploads import MAX_BYTES, MAX_PIXELS, read_upload

from .files import ACCEPTED, DAMAGED, REFUSED, encoded, noise, png
from .memory import peak_growth


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_a_picture_is_read_with_its_notes(name, channels, mode):
    content, notes = ACCEPTED[name]
    upload = read_upload(content, channels)
    assert upload.image.mode == mode
    assert list(upload.notes) == notes
    upload.image.tobytes()  # is in memory, and not left to a closed file


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_picture_is_refused_with_a_sentence(name):
    content, pattern = REFUSED[name]
    with pytest.raises(ValueError, match=pattern) as refusal:
        read_upload(content, 3)
    assert re.fullmatch(r"(The|This) [^\n]*\.", str(refusal.value))


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_picture_is_read_or_refused(name):
    with suppress(ValueError):
        image = read_upload(DAMAGED[name], 3).image
        assert len(image.tobytes()) == 3 * image.width * image.height


UPRIGHT = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
    8: lambda a: np.rot90(a),
}
"""EXIF's orientation: what brings the stored pixels (h, w, 3) upright."""


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_picture_comes_upright(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = np.asarray(read_upload(encoded(noise(), kind), 3).image)
    found = np.asarray(read_upload(encoded(noise(), kind, exif=exif), 3).image)
    assert np.array_equal(found, UPRIGHT[orientation](stored))


def test_of_16_bits_the_upper_eight_remain():
    deep = np.random.default_rng(0).integers(0, 2**16, (20, 30), dtype=np.uint16)
    image = read_upload(encoded(Image.fromarray(deep)), 1).image
    assert np.array_equal(np.asarray(image), deep // 256)


def test_the_first_frame_is_looked_at():
    content = encoded(noise(5), "PNG", save_all=True, append_images=[noise(6)], duration=50)
    assert np.array_equal(np.asarray(read_upload(content, 3).image), np.asarray(noise(5)))


BOMBS = [name for name in REFUSED if name.startswith(("a header of 6", "81 mega", "64 MB"))]


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_does_not_go_off(name):
    """It is refused at once, and in less memory than the smallest of them would take, 64 MB."""

    def refused():
        start = time.thread_time()
        with pytest.raises(ValueError, match="picture"):
            read_upload(REFUSED[name][0], 3)
        assert time.thread_time() - start < 1.0

    assert peak_growth(refused) < 2**24


def test_the_limits_are_limits():
    assert read_upload(png(10_000, 5_000, bytes(10_001 * 5_000)), 1).image.size == (10_000, 5_000)
    assert MAX_PIXELS == 10_000 * 5_000
    with pytest.raises(ValueError, match="10000 × 5001 pixels: at most 50 megapixels"):
        read_upload(png(10_000, 5_001, b""), 1)
    whole = encoded(noise())
    assert read_upload(whole + bytes(MAX_BYTES - len(whole)), 3).notes == ()
    with pytest.raises(ValueError, match="20 are allowed"):
        read_upload(whole + bytes(MAX_BYTES - len(whole) + 1), 3)


def test_pictures_are_decoded_one_after_the_other(monkeypatch):
    """For memory, and since the filters of warnings belong to the process: threads that set them leave them set."""
    decode, inside, most = uploads.with_channels, [], []

    def slow(image, channels):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.005)
        inside.pop()
        return decode(image, channels)

    monkeypatch.setattr(uploads, "with_channels", slow)
    before, content = list(warnings.filters), encoded(noise())
    threads = [threading.Thread(target=read_upload, args=(content, 3)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 16
    assert max(most) == 1
    assert warnings.filters == before
