"""A client that sends exactly what a test says, and no more."""

import http.client
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

PAGE = {"x-opencrate": "1"}  # what the page sends with every question


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    content: bytes

    @property
    def said(self) -> Any:
        return json.loads(self.content)

    @property
    def refusal(self) -> str:
        """The sentence of a refusal, which reveals nothing of the server's inside."""
        assert 400 <= self.status < 500, (self.status, self.content)
        sentence = self.said["error"]
        assert list(self.said) == ["error"]
        assert sentence.endswith(".")
        assert sentence[0].isupper()
        assert not any(inside in sentence for inside in ("Traceback", "\n", "/", ".py", "0x", "Error", "object at"))
        return sentence


def ask(
    address: str,
    path: str,
    content: bytes | Iterable[bytes] | None = None,
    headers: dict[str, str] = PAGE,
    method: str | None = None,
) -> Answer:
    """`method`, or POST with a content and GET without; an iterable is sent in chunks, without a length."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    try:
        method = method or ("GET" if content is None else "POST")
        with suppress(BrokenPipeError, ConnectionResetError):  # it may answer before it has read all
            connection.request(method, path, content, headers)
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


def question(address: str, name: str, **asked: Any) -> Answer:
    return ask(address, f"/api/{name}", json.dumps(asked).encode())


def opened(address: str, content: bytes) -> dict[str, Any]:
    answer = ask(address, "/api/picture", content)
    assert answer.status == 200, answer.content
    return answer.said
