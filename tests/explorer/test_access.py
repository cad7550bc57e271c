"""Who may use the explorer off loopback: by its token and its names; and what it does not say."""

import http.client
import logging
import re
import socket
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

pytest.importorskip("uvicorn")

from opencrate.explorer.access import FOREIGN_HOST, FOREIGN_PAGE, NO_TOKEN, access_at
from opencrate.explorer.explore import Exploring, open_subject, serving
from opencrate.explorer.picture_store import LRUCache
from opencrate.explorer.server import HEADERS, PAGE

from .asking import PAGE as QUESTION
from .asking import ask, opened, question
from .conftest import free_port
from .files import encoded, noise

ELSEWHERE = "127.0.0.2"
ROUTES = ["/", "/api/about", "/api/reference", "/api/thumbnails", "/favicon.ico", "/nothing/here"]
ROUTES += [f"/page/{file.name}" for file in PAGE.iterdir()]
QUESTIONS = [f"/api/{name}" for name in ("picture", "sample", "look", "attention", "head", "coordinate", "unknown")]


@pytest.fixture(scope="module")
def shared(subject, settings):
    """The printed address of a server off loopback."""
    with serving(subject, replace(settings, host=ELSEWHERE, port=free_port())) as address:
        yield address


@pytest.fixture
def base(shared):
    return shared.partition("/?")[0]


@pytest.fixture
def token(shared):
    return shared.partition("/?token=")[2]


def asked(base, path, cookie=None, **headers):
    """GET, or POST for a question, with the page's header."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()} | QUESTION
    return ask(base, path, b"{}" if path in QUESTIONS else None, headers | ({"Cookie": cookie} if cookie else {}))


def cookie_of(shared):
    base, _, query = shared.partition("/?")
    return ask(base, f"/?{query}").headers["set-cookie"].partition(";")[0]


def sent(base, head):
    """The first line of the answer to exactly this head of a request."""
    parts = urlsplit(base)
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as visitor:
        visitor.sendall("".join(f"{line}\r\n" for line in [*head, ""]).encode())
        return visitor.recv(1000).split(b"\r\n")[0].decode()


@pytest.mark.parametrize("path", ROUTES + QUESTIONS)
def test_without_the_token_everything_is_refused(base, token, path):
    wrong = ["", token[:-1], token + "a", token.swapcase(), "%00", "%C3%A4", "%ED%A0%80"]
    for query in ["", *(f"?token={one}" for one in wrong), f"?token={token}&token=x", f"?Token={token}"]:
        answer = asked(base, path + query) if path not in QUESTIONS else ask(base, path + query, b"{}")
        assert answer.status == 403
        assert answer.refusal == NO_TOKEN
        assert "set-cookie" not in answer.headers
        assert all(answer.headers.get_all(name) == [value] for name, value in HEADERS.items())


@pytest.mark.parametrize("method", ["HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"])
def test_without_the_token_every_method_is_refused(base, method):
    assert {ask(base, path, method=method).status for path in ROUTES + QUESTIONS} == {403}


def test_the_token_opens_the_page_and_its_cookie_the_rest(shared, base):
    answer = ask(base, "/?" + shared.partition("/?")[2])
    assert answer.status == 200
    assert b"Inside a CRATE" in answer.content
    cookie, *rules = answer.headers["set-cookie"].split("; ")
    assert rules == ["Path=/", "HttpOnly", "SameSite=Strict"]
    assert shared.partition("token=")[2] not in cookie
    statuses = {path: asked(base, path, cookie).status for path in ROUTES + QUESTIONS}
    assert {path for path, status in statuses.items() if status == 403} == set()
    assert {statuses[path] for path in ("/", "/api/about", "/page/script.js")} == {200}
    assert asked(base, "/", cookie).headers["set-cookie"] is None  # the session goes on


def test_a_cookie_is_no_other_than_it_was_given(shared, base):
    cookie = cookie_of(shared)
    name, _, value = cookie.partition("=")
    session, _, signature = value.partition(".")
    forged = [f"{session}x.{signature}", f"{session}.{signature[:-1]}", f"{session}.{'0' * 64}", f"{session}.ä"]
    forged += [f"{session}.", f".{signature}", session, ".", ""]
    for value in forged:
        assert asked(base, "/api/about", f"{name}={value}".encode().decode("latin-1")).status == 403
    assert asked(base, "/api/about", cookie.replace("opencrate-", "opencrate-1")).status == 403
    assert asked(base, "/api/about", f"other=1; {cookie}").status == 200


def test_the_cookie_of_another_server_opens_nothing(shared, base, subject, settings):
    with serving(subject, replace(settings, host=ELSEWHERE, port=free_port())) as other:
        name = cookie_of(shared).partition("=")[0]
        assert asked(base, "/api/about", f"{name}={cookie_of(other).partition('=')[2]}").status == 403


FOREIGN_HOSTS = ["example.org", "localhost", "127.0.0.1", "127.0.0.22", "127.0.0.2.example.org", "127.0.0.2.", ""]
FOREIGN_HOSTS += ["127.0.0.2:7860:1", "127.0.0.2:", "127.0.0.2:port", "[127.0.0.2]", "2130706434", "user@127.0.0.2"]


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_a_foreign_name_is_refused_with_the_token_too(shared, base, token, host):
    for path in ("/", f"/?token={token}", "/api/about", "/page/script.js", "/api/look"):
        answer = asked(base, path, cookie_of(shared), Host=host)
        assert answer.status == 403
        assert answer.refusal == FOREIGN_HOST


FOREIGN_ORIGINS = ["null", "http://example.org", "http://127.0.0.2", "http://127.0.0.2:1", "http://127.0.0.1:{port}"]
FOREIGN_ORIGINS += ["127.0.0.2:{port}", "//127.0.0.2:{port}", "ftp://127.0.0.2:{port}", "http://127.0.0.2:{port}/"]
FOREIGN_ORIGINS += ["http://127.0.0.2:{port}@example.org", "http://127.0.0.2:{port}, http://example.org"]


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
def test_a_foreign_page_is_refused_with_the_token_too(shared, base, token, origin):
    origin = origin.format(port=urlsplit(base).port)
    for path in (f"/?token={token}", "/api/about", "/page/script.js", "/api/sample"):
        answer = asked(base, path, cookie_of(shared), Origin=origin)
        assert answer.status == 403
        assert answer.refusal == FOREIGN_PAGE
    assert asked(base, "/api/about", cookie_of(shared), Origin=base).status == 200


def test_hosts_that_are_missing_or_several_are_refused(base, token):
    host, target = f"Host: {urlsplit(base).netloc}", f"/api/about?token={token}"
    origin = f"Origin: {base}"
    assert sent(base, [f"GET {target} HTTP/1.1", host, origin]).startswith("HTTP/1.1 200")
    assert sent(base, [f"GET {target} HTTP/1.0", host]).startswith("HTTP/1.1 200")
    assert sent(base, [f"GET {target} HTTP/1.0"]).startswith("HTTP/1.1 403")
    assert sent(base, [f"GET {target} HTTP/1.1", host, origin, "Origin: null"]).startswith("HTTP/1.1 403")
    assert sent(base, [f"GET http://example.org{target} HTTP/1.1", "Host: example.org"]).startswith("HTTP/1.1 403")
    for head in ([f"GET {target} HTTP/1.1"], [f"GET {target} HTTP/1.1", host, host]):
        assert sent(base, head).startswith("HTTP/1.1 400")
    both = [f"GET {target} HTTP/1.1", host, "Host: example.org"]
    assert sent(base, both).startswith("HTTP/1.1 400")


def scope(host, server="10.0.0.7", path="/", query=b"", **headers):
    raw = [(name.encode(), value.encode()) for name, value in ({"host": host} | headers).items()]
    return {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": query,
        "headers": raw,
        "client": ("10.0.0.9", 40000),
        "server": (server, 7860),
    }


@pytest.mark.parametrize(
    ("listening", "names", "host", "known"),
    [
        ("127.0.0.1", (), "[::1]:7860", True),
        ("127.0.0.1", (), "LOCALHOST:7860", True),
        ("127.0.0.1", (), "gpu3", False),
        ("127.0.0.1", ("gpu3",), "gpu3:80", True),
        ("::1", (), "[::1]", True),
        ("0.0.0.0", (), "localhost:7860", True),
        ("0.0.0.0", (), "gpu3:7860", True),
        ("0.0.0.0", (), "gpu3.example.org", True),
        ("0.0.0.0", (), "10.0.0.7:7860", True),  # the address at which the connection arrived
        ("0.0.0.0", (), "10.0.0.8:7860", False),
        ("0.0.0.0", ("10.0.0.8",), "10.0.0.8:7860", True),
        ("0.0.0.0", (), "evil.example.org", False),
        ("10.0.0.7", (), "gpu3", True),
        ("10.0.0.7", (), "localhost", False),
        ("fd00::7", (), "[fd00::7]:7860", True),
        ("fd00::7", (), "fd00::7", False),
        ("fd00::7", (), "[fd00::8]:7860", False),
    ],
)
def test_the_names_that_a_server_knows(monkeypatch, listening, names, host, known):
    monkeypatch.setattr(socket, "gethostname", lambda: "GPU3")
    monkeypatch.setattr(socket, "getfqdn", lambda: "gpu3.example.org")
    access = access_at(Exploring(host=listening, names=names), 7860)
    asked = scope(host, query=f"token={access.token}".encode())
    assert access.refusal(asked) == (None if known else FOREIGN_HOST)
    assert access.needs_token == (listening not in ("127.0.0.1", "::1") or bool(names))
    assert access.refusal(scope(host)) == (FOREIGN_HOST if not known else NO_TOKEN if access.needs_token else None)


def test_on_loopback_nothing_is_asked_for(address):
    assert "token" not in address
    assert {asked(address, path).status for path in ROUTES[:4]} == {200}
    visitor = ask(address, "/").headers["set-cookie"]
    assert "HttpOnly; SameSite=Strict" in visitor  # it tells visitors apart, and opens nothing


def test_a_person_without_the_token_reads_a_sentence(base):
    answer = asked(base, "/", Accept="text/html,application/xhtml+xml,*/*;q=0.8")
    assert answer.status == 403
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert f"<p>{NO_TOKEN}</p>" in answer.content.decode()
    assert "opencrate explore printed in the terminal" in NO_TOKEN


def test_listening_elsewhere_is_said_without_the_token(subject, settings, caplog):
    with (
        caplog.at_level(logging.WARNING, "opencrate"),
        serving(subject, replace(settings, host="0.0.0.0", port=free_port())) as address,
    ):
        assert re.fullmatch(r"http://localhost:\d+/\?token=[\w-]{43}", address)
        assert ask(address.partition("/?")[0], "/api/about").status == 403
    [said] = caplog.messages
    assert said.startswith("listening on 0.0.0.0: everyone who has the complete address can use the page")
    assert address.partition("token=")[2] not in said


def test_paths_are_not_told_elsewhere(checkpoint, pictures, settings):
    here = replace(settings, against=checkpoint)
    for host, is_told in (("127.0.0.1", True), (ELSEWHERE, False)):
        about = open_subject(checkpoint, replace(here, host=host)).about()
        told = [part for part in (checkpoint, str(pictures)) if part in str(about)]
        assert told == ([checkpoint, str(pictures)] if is_told else [])
        assert "model" in about["source"]
        assert pictures.name in about["settings"]


def test_a_visitor_pushes_out_only_their_own(shared, base):
    """Sessions of one address, since the test has no other."""
    first, second = (QUESTION | {"Cookie": cookie_of(shared)} for _ in range(2))

    def open_as(headers):
        answer = ask(base, "/api/picture", encoded(noise(0, 8, 8)), headers)
        assert answer.status == 200, answer.content
        return answer.said["key"]

    def is_kept(key):
        body = f'{{"key": "{key}", "token": 0}}'.encode()
        return ask(base, "/api/attention", body, first).status == 200

    theirs, others = [open_as(first) for _ in range(3)], [open_as(second) for _ in range(80)]
    assert all(map(is_kept, theirs))
    assert not is_kept(others[0])
    assert is_kept(others[-1])


def test_who_owns_most_loses_first():
    cache: LRUCache[int] = LRUCache(6, int)
    for key, size, owner in [("a", 1, ("x", "1")), ("b", 3, ("y", "1")), ("c", 1, ("y", "2")), ("d", 1, ("x", "1"))]:
        cache.put(key, size, owner)
    cache.put("e", 1, ("x", "1"))  # y has 4 of 7, and y's first session 3 of them
    assert [cache.get(key) for key in "abcde"] == [1, None, 1, 1, 1]
    cache.put("f", 3, ("z", "1"))  # x has 3, as z, whose only one is the newest
    assert [cache.get(key) for key in "acdef"] == [None, 1, 1, 1, 3]
    assert cache.owner("f") == ("z", "1")
    assert cache.owner("b") == ()


def test_a_client_without_a_session_is_a_visitor_too(address):
    key = opened(address, encoded(noise()))["key"]
    assert question(address, "look", key=key).status == 200


def test_the_server_speaks_http_only(base):
    connection = http.client.HTTPConnection(urlsplit(base).netloc, timeout=30)
    connection.request("GET", "/", headers={"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "x"})
    assert connection.getresponse().status == 403
    connection.close()
