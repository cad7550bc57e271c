"""The server from outside: whatever is sent, an answer or a sentence; to everyone their own; and nothing else open."""

import base64
import io
import logging
import os
import re
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("uvicorn")

from opencrate.explorer import views
from opencrate.explorer.access import FOREIGN_HOST
from opencrate.explorer.explore import serving
from opencrate.explorer.picture_store import PictureStore
from opencrate.explorer.server import HEADERS, MAX_OFF
from opencrate.explorer.uploads import MAX_BYTES
from opencrate.inspection.recording import record

from .asking import PAGE, ask, opened, question
from .conftest import free_port
from .files import ACCEPTED, DAMAGED, REFUSED, encoded, noise
from .memory import peak_growth, resident


@pytest.fixture
def still_answers(address):
    """After the test, the server does what it should."""
    yield
    assert opened(address, encoded(noise()))["notes"] == []


@pytest.fixture
def quiet():
    """The server logs no error, which would print a traceback."""
    complaints, log, handler = [], logging.getLogger("uvicorn.error"), logging.Handler(logging.ERROR)
    handler.emit = complaints.append
    log.addHandler(handler)
    yield
    log.removeHandler(handler)
    assert complaints == []


@pytest.fixture(scope="module")
def key(address):
    return opened(address, encoded(noise()))["key"]


def decoded(address: str) -> np.ndarray:
    """The pixels of a picture that travels as its address."""
    kind, _, content = address.partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


# What is sent as a picture.


@pytest.mark.usefixtures("still_answers", "quiet")
@pytest.mark.parametrize("name", ACCEPTED)
def test_a_picture_is_taken_with_its_notes(address, subject, name):
    content, notes = ACCEPTED[name]
    answer = opened(address, content)
    assert answer["notes"] == notes
    assert decoded(answer["shown"]).shape == (*subject.model.patch_embed.img_size, 3)


@pytest.mark.usefixtures("still_answers", "quiet")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_picture_is_refused(address, name):
    content, pattern = REFUSED[name]
    answer = ask(address, "/api/picture", content, PAGE | {"Content-Type": "image/png"})
    assert answer.status == (413 if len(content) > MAX_BYTES else 400)
    assert re.search(pattern, answer.refusal)


@pytest.mark.usefixtures("still_answers", "quiet")
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_picture_is_taken_or_refused(address, name):
    answer = ask(address, "/api/picture", DAMAGED[name])
    assert answer.status == 200 or answer.refusal


@pytest.mark.usefixtures("still_answers", "quiet")
@pytest.mark.parametrize("megabytes", [21, 100])
def test_a_large_file_is_refused_before_it_is_read(address, megabytes):
    """In chunks, so without a length that tells."""

    def refused():
        answer = ask(address, "/api/picture", (bytes(2**20) for _ in range(megabytes)))
        assert answer.status == 413
        assert "20 MB" in answer.refusal

    assert peak_growth(refused) < 3 * MAX_BYTES


@pytest.mark.usefixtures("still_answers", "quiet")
@pytest.mark.parametrize("length", ["1000", "0", "-5", "99999999999999999999", "many"])
def test_a_length_that_lies(address, length):
    """Of a sender who then hangs up."""
    host, port = urlsplit(address).netloc.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as visitor:
        head = f"POST /api/picture HTTP/1.1\r\nHost: {host}\r\nx-opencrate: 1\r\nContent-Length: {length}\r\n\r\n"
        visitor.sendall(head.encode() + encoded(noise())[:500])
        visitor.shutdown(socket.SHUT_WR)
        answer = visitor.makefile("rb").read()
    assert not answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 5"))
    time.sleep(0.05)


def test_a_jpeg_on_its_side_is_seen_upright(address):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned right
    lying = encoded(noise(), "JPEG", exif=exif)
    upright = np.rot90(np.asarray(Image.open(io.BytesIO(encoded(noise(), "JPEG")))), -1)
    found, expected = opened(address, lying), opened(address, encoded(Image.fromarray(upright)))
    assert [found[name] for name in ("shown", "sites", "curves")] == [
        expected[name] for name in ("shown", "sites", "curves")
    ]
    assert found["sites"] != opened(address, encoded(noise(), "JPEG"))["sites"]


# Many visitors.


def photo(number: int) -> bytes:
    return encoded(noise(number, 1000, 900), "JPEG")


def visit(address: str, number: int) -> tuple[dict, dict, dict]:
    """What a visitor sees of their own picture: when it is opened, by its key, and its attention."""
    picture = opened(address, photo(number))
    look, attention = (question(address, name, key=picture["key"], token=3) for name in ("look", "attention"))
    assert (look.status, attention.status) == (200, 200)
    return picture, look.said, attention.said


def visits(address: str, first: int) -> list[tuple[dict, dict, dict]]:
    with ThreadPoolExecutor(50) as visitors:
        return list(visitors.map(lambda number: visit(address, number), range(first, first + 50)))


def probabilities(look: dict) -> list[float]:
    """By class, all five of them."""
    return [row["probability"] for row in sorted(look["prediction"], key=lambda row: row["number"])]


@pytest.mark.usefixtures("quiet")
def test_fifty_visitors_at_once_see_their_own_pictures(empty_address, subject):
    """And leave nothing behind: the pictures, 2.7 MB each, would be more than the tenth that is allowed."""
    visits(empty_address, 0)
    before = resident()
    answers = visits(empty_address, 100)
    assert resident() < 1.1 * before
    prepared = [subject.prepare(Image.open(io.BytesIO(photo(number)))) for number in range(100, 150)]
    recordings = [record(subject.model, picture.images) for picture in prepared]
    expected = np.array([probabilities(views.look(recording, subject.study.class_name)) for recording in recordings])
    for number, (picture, look, attention) in enumerate(answers):
        apart = np.abs(expected - probabilities(look)).max(-1)
        assert apart[number] < 1e-6
        assert (np.delete(apart, number) > 1e-5).all()  # it is nobody else's
        assert probabilities(picture) == pytest.approx(expected[number], rel=1e-5)
        wanted = views.attention(recordings[number], 3)["largest"]
        assert np.allclose(attention["largest"], wanted, rtol=1e-5)
    assert len({picture["key"] for picture, _, _ in answers}) == 50


def test_a_key_cannot_be_guessed(address):
    """128 random bits: in no place do fifty keys agree, and what is near to a key is none."""
    keys = [question(address, "sample", number=0).said["key"] for _ in range(50)]
    bits = np.unpackbits(np.array([list(base64.urlsafe_b64decode(key + "==")) for key in keys], np.uint8), axis=-1)
    assert bits.shape == (50, 128)
    assert (bits.mean(0) > 0.1).all()  # each is off with probability 10⁻⁹
    assert (bits.mean(0) < 0.9).all()
    near = [
        keys[0][:-1],
        keys[0].swapcase(),
        keys[0][::-1],
        keys[0] + "=",
        " " + keys[0],
        "",
        "0",
        "*",
        "../" + keys[0],
    ]
    for key in near:
        answer = question(address, "look", key=key)
        assert answer.status == 410
        assert "no longer kept" in answer.refusal
    assert question(address, "look").status == 410


def test_the_oldest_is_forgotten(empty_address):
    first, second = (question(empty_address, "sample", number=0).said["key"] for _ in range(2))
    for _ in range(PictureStore().pictures.limit - 1):
        last = question(empty_address, "sample", number=1).said["key"]
    assert [question(empty_address, "look", key=key).status for key in (first, second, last)] == [410, 200, 200]


def test_what_is_looked_at_is_kept():
    store = PictureStore(max_pictures=2)
    first, second = store.add("first"), store.add("second")
    assert store.get(first) == "first"
    third = store.add("third")
    assert [store.get(key) for key in (first, third)] == ["first", "third"]
    with pytest.raises(KeyError, match="no longer kept"):
        store.get(second)


# What is not ours, and what is not from the page.


@pytest.mark.parametrize(
    "path",
    [
        "/config",
        "/config/",
        "/info",
        "/gradio_api/info",
        "/gradio_api/queue/join",
        "/gradio_api/queue/data?session_hash=1",
        "/gradio_api/file=/etc/passwd",
        "/gradio_api/proxy=http://example.org",
        "/gradio_api/upload",
        "/gradio_api/startup-events/",
        "/gradio_api/heartbeat/1",
        "/file=/etc/passwd",
        "/upload",
        "/login",
        "/token",
        "/theme.css",
        "/static/img/logo.svg",
        "/svelte/index.js",
        "/manifest.json",
        "/monitoring",
        "/docs",
        "/redoc",
        "/openapi.json",
        "//config",
        "/./config",
        "/page/",
        "/page/..",
        "/page/../server.py",
        "/page/%2e%2e/server.py",
        "/page/..%2fserver.py",
        "/page//etc/passwd",
        "/page/%2fetc%2fpasswd",
        "/page/index.html%00.js",
        "/page/__init__.py",
        "/api/",
        "/api/%2e%2e/config",
    ],
)
def test_everything_else_is_closed(address, path):
    for method in ("GET", "POST"):
        answer = ask(address, path, b"{}" if method == "POST" else None)
        assert answer.status == 404 or (method == "POST" and answer.status == 405)
        assert len(answer.content) < 100
        assert b"root:" not in answer.content


def test_an_unknown_question(address):
    assert ask(address, "/api/unknown", b"{}").status == 404
    assert ask(address, "/api/unknown", b"{}").refusal == "There is no such question."
    assert ask(address, "/api/unknown").status == 405


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"])
@pytest.mark.parametrize("path", ["/", "/api/look", "/gradio_api/upload", "/page/index.html"])
def test_other_methods_are_closed(address, method, path):
    assert ask(address, path, method=method).status in (404, 405)


WRITTEN: list[str] | None = None  # where it is a list, files that are opened for writing are noted in it


def _note(event: str, arguments: tuple) -> None:
    if event == "open" and WRITTEN is not None:
        path, mode, flags = arguments
        if any(letter in (mode or "") for letter in "wax+") or flags & (os.O_WRONLY | os.O_RDWR):
            WRITTEN.append(str(path))


@pytest.fixture
def written():
    """The files that this process, which the server is part of, opens for writing."""
    global WRITTEN
    if WRITTEN is None:
        sys.addaudithook(_note)
    WRITTEN = []
    yield WRITTEN
    WRITTEN = None


def test_an_upload_is_not_written_to_disk(address, written, tmp_path):
    content = encoded(noise(), "PNG") + bytes(2**21)  # forms usually go to a file from 1 MB on
    border = b"--border\r\n"
    form = b'Content-Disposition: form-data; name="files"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
    headers = PAGE | {"Content-Type": "multipart/form-data; boundary=border"}
    body = border + form + content + b"\r\n--border--\r\n"
    for path in ("/gradio_api/upload", "/upload"):
        assert ask(address, path, body, headers).status == 404
    assert ask(address, "/api/picture", body, headers).status == 400
    opened(address, content)
    assert written == []
    (tmp_path / "mine").write_text("seen")
    assert written == [str(tmp_path / "mine")]


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "text/plain"}, {"x-opencrat": "1"}])
@pytest.mark.parametrize("name", ["picture", "look", "sample"])
def test_a_question_without_the_pages_header_is_refused(address, headers, name):
    answer = ask(address, f"/api/{name}", b"{}", headers)
    assert answer.status == 403
    assert answer.refusal == "Only the explorer's own page may ask."


@pytest.mark.parametrize(
    "host", ["example.org", "example.org:7860", "127.0.0.1.example.org", "localhost.", "[::2]", ""]
)
def test_a_foreign_name_is_refused(address, host):
    """As a site has that lets its name lead to this machine."""
    for path in ("/", "/api/about", "/page/script.js"):
        answer = ask(address, path, headers={"Host": host})
        assert answer.status == 403
        assert answer.refusal == FOREIGN_HOST


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "localhost:7860", "[::1]", "[::1]:7860"])
def test_its_own_names_are_known(address, host):
    assert ask(address, "/api/about", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "origin", ["http://example.org", "null", "http://localhost:1", "https://127.0.0.1.example.org"]
)
def test_another_sites_page_is_refused(address, origin):
    """Also the page of another server on this machine."""
    for content in (None, b"{}"):
        answer = ask(address, "/api/about" if content is None else "/api/look", content, PAGE | {"Origin": origin})
        assert answer.status == 403
    own = ask(address, "/api/sample", b'{"number": 0}', PAGE | {"Origin": address})
    assert own.status == 200


@pytest.mark.parametrize("path", ["/api/about", "/api/thumbnails", "/api/look", "/config", "/page/none.js"])
def test_every_answer_carries_the_policy(address, path):
    for headers in (PAGE, {"Host": "example.org"}):
        answer = ask(address, path, headers=headers)
        for name, value in HEADERS.items():
            assert answer.headers.get_all(name) == [value]
    assert "default-src 'none'" in HEADERS["Content-Security-Policy"]


# What is wrong in a question.

DEEP = b"[" * 30_000
RAW = {
    "nothing": b"",
    "text": b"look",
    "half": b'{"key": "',
    "a list": b"[]",
    "null": b"null",
    "a number": b"1",
    "no UTF-8": b'{"key": "\xff\xfe"}',
    "deep": DEEP + b"]" * 30_000,
    "deep and open": DEEP,
    "deep inside": b'{"a":' * 9_000,
    "a number of 5000 digits": b'{"token": ' + b"9" * 5000 + b"}",
}


@pytest.mark.usefixtures("still_answers", "quiet")
@pytest.mark.parametrize("content", RAW.values(), ids=RAW)
def test_what_is_no_question_is_refused(address, content):
    for name in ("sample", "look", "attention", "head", "coordinate"):
        answer = ask(address, f"/api/{name}", content)
        assert answer.status == 400
        assert answer.refusal == "The question is not JSON."


NUMBERS = [-1, 10**6, 2**31, 2**63, 2**64, 10**4000, 1.0, 1.5, float("nan"), float("inf"), True, None, "1", [1], {}]


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: repr(number)[:12])
def test_a_wrong_number_is_refused(address, key, number):
    asked = [
        question(address, "sample", number=number),
        question(address, "attention", key=key, token=number),
        question(address, "head", key=key, layer=number, head=1),
        question(address, "head", key=key, layer=1, head=number),
        question(address, "coordinate", key=key, layer=number, coordinate=1),
        question(address, "coordinate", key=key, layer=1, coordinate=number),
        *(question(address, "look", key=key, off={kind: [[number, 1]]}) for kind in ("heads", "atoms")),
        *(question(address, "look", key=key, off={kind: [[1, number]]}) for kind in ("heads", "atoms")),
    ]
    for answer in asked:
        assert answer.status == 400
        assert answer.refusal


@pytest.mark.parametrize(
    ("name", "beyond"),
    [
        ("sample", {"number": 6}),
        ("attention", {"token": 17}),
        ("head", {"layer": 0, "head": 1}),
        ("head", {"layer": 4, "head": 1}),
        ("head", {"layer": 1, "head": 0}),
        ("head", {"layer": 1, "head": 5}),
        ("coordinate", {"layer": 1, "coordinate": 0}),
        ("coordinate", {"layer": 1, "coordinate": 25}),
        ("coordinate", {"coordinate": 1}),
        ("look", {"off": {"heads": [[1, 5]]}}),
        ("look", {"off": {"heads": [[0, 1]]}}),
        ("look", {"off": {"atoms": [[3, 25]]}}),
        ("look", {"off": {"heads": [[1, 1]] * (MAX_OFF + 1)}}),
        ("look", {"off": {"atoms": [[1, 1]] * (MAX_OFF + 1)}}),
        ("look", {"off": {"heads": {"1": 1}}}),
        ("look", {"off": {"heads": [[1, 2, 3]]}}),
        ("look", {"off": {"heads": [1, 2]}}),
        ("look", {"off": {"heads": "11"}}),
        ("look", {"off": [[1, 1]]}),
        ("look", {"off": None}),
        ("look", {"off": 1}),
        ("look", {"network": "another"}),
        ("look", {"network": "\ud800"}),
        ("look", {"network": "__class__"}),
        ("look", {"network": None}),
        ("look", {"network": ["this network"]}),
        ("look", {"network": "../" * 1000}),
    ],
)
@pytest.mark.usefixtures("quiet")
def test_what_lies_beyond_is_refused(address, key, name, beyond):
    answer = question(address, name, key=key, **beyond)
    assert answer.status == 400
    assert "network" in beyond or answer.refusal


@pytest.mark.parametrize("wrong", [None, True, 1, 1.5, [], {}, ["a"], "\ud800", "\0", "a" * 60_000])
@pytest.mark.usefixtures("quiet")
def test_a_key_of_another_kind_opens_nothing(address, wrong):
    answer = question(address, "look", key=wrong)
    assert answer.status == 410
    assert answer.refusal


def test_a_long_question_is_not_read(address, key):
    assert question(address, "look", key=key, more="a" * 2**17).status in (404, 413)


# Where it listens.


def own_address() -> str | None:
    """Another address of this machine than the loopback; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        found = probe.getsockname()[0]
    return None if found.startswith("127.") or found == "0.0.0.0" else found


def test_it_listens_on_this_machine_only(address):
    assert urlsplit(address).hostname == "127.0.0.1"
    other = own_address()
    if other is None:
        pytest.skip("this machine has no other address")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((other, urlsplit(address).port), timeout=10)


def test_a_port_in_use_is_passed_over(subject, settings):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        taken.listen()
        port = taken.getsockname()[1]
        with serving(subject, replace(settings, port=port)) as address:
            assert port < urlsplit(address).port < port + 100
            assert ask(address, "/api/about").status == 200


@pytest.mark.parametrize("host", ["nowhere.invalid", "192.0.2.1"])
def test_a_host_that_is_not_this_machine(subject, settings, host):
    with (
        pytest.raises(ValueError, match=f"^cannot listen on {re.escape(host)}, port 7000: "),
        serving(subject, replace(settings, host=host, port=7000)),
    ):
        pass


def test_no_port_is_free(monkeypatch, subject, settings):
    def bind(*_):
        raise OSError("in use")

    monkeypatch.setattr(socket.socket, "bind", bind)
    with (
        pytest.raises(ValueError, match=r"no port from 7000 to 7099 is free on 127\.0\.0\.1"),
        serving(subject, replace(settings, port=7000)),
    ):
        pass


def test_listening_to_itself_is_not_said(subject, settings, caplog):
    with caplog.at_level(logging.WARNING), serving(subject, replace(settings, port=free_port())):
        pass
    assert caplog.messages == []


def test_a_server_that_stops_frees_its_port_and_leaves_no_thread(subject, settings):
    before = set(threading.enumerate())
    with serving(subject, replace(settings, port=free_port())) as address:
        assert opened(address, encoded(noise()))["notes"] == []
        subject.measure_reference().join()
    with pytest.raises(ConnectionRefusedError):
        ask(address, "/")
    assert {
        thread.name for thread in set(threading.enumerate()) - before if not thread.name.startswith("AnyIO")
    } == set()
