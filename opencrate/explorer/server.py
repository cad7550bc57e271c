"""The page's server: gradio's, with our page and our few addresses in the place of its own.

Everything else that gradio would answer, its uploads to disk among it, is closed. A picture arrives as the body of a
request, is decoded in memory, and is found again by a key that only its visitor has.
"""

import json
import mimetypes
import os
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

import torch

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # before gradio is imported

import gradio
from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from . import views
from .picture_store import Rooms
from .subject import THIS, Subject
from .uploads import MAX_BYTES, read_upload

__all__ = ["build"]

PAGE = files("opencrate.explorer").joinpath("page")
FILES = ("style.css", "script.js", "draw.js", "charts.js", "save.js", "tour.js")
STARTING = "/gradio_api/startup-events"  # what gradio asks itself when it starts
MOST_BYTES = 2**16  # of a question
MOST_OFF = 64  # heads and coordinates that are switched off together
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
OURS = "x-opencrate"  # a header that another site's page cannot send without asking, and nobody answers it

Answer = dict[str, Any]


def build(subject: Subject, hosts: tuple[str, ...] | None) -> gradio.Server:
    """The application; `hosts` are the names under which it may be asked for, None for any."""
    app = gradio.Server(title="opencrate explore", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(_Closed, hosts=hosts)
    rooms = Rooms()

    def opened(picture: Any, notes: tuple[str, ...] = ()) -> Answer:
        with subject.computing:
            seen = views.look(subject.model, picture, subject.study.class_name)
        return {"key": rooms.keep(picture), "notes": notes, "shown": views.png(picture.shown[0]), **seen}

    def upload(content: bytes) -> Answer:
        picture = read_upload(content, subject.model.patch_embed.in_chans)
        return opened(subject.prepare(picture.image), picture.notes)

    def asked(question: Answer) -> tuple[Any, Any]:
        """The network, without what is switched off, and the picture that a question is about."""
        model = subject.network(str(question.get("network", THIS)))
        off = question.get("off", {})
        return views.without(model, _pairs(off, "heads"), _pairs(off, "atoms")), rooms.find(str(question.get("key")))

    def look(question: Answer) -> Answer:
        model, picture = asked(question)
        with subject.computing:
            return views.look(model, picture, subject.study.class_name)

    def attention(question: Answer) -> Answer:
        model, picture = asked(question)
        with subject.computing:
            return views.attention(model, picture, _whole(question, "token"))

    def head(question: Answer) -> Answer:
        model, picture = asked(question)
        with subject.computing:
            return views.head(model, picture, subject.patched, *_place(model, question, "head", model.num_heads))

    def coordinate(question: Answer) -> Answer:
        model, picture = asked(question)
        with subject.computing:
            return views.coordinate(
                model, picture, subject.patched, *_place(model, question, "coordinate", model.embed_dim)
            )

    answers: dict[str, Callable[[Answer], Answer]] = {
        "sample": lambda question: opened(subject.sample(_whole(question, "number"))),
        "look": look,
        "attention": attention,
        "head": head,
        "coordinate": coordinate,
    }

    @app.get("/")
    async def page() -> Response:
        return _file("index.html")

    @app.get("/page/{name}")
    async def part(name: str) -> Response:
        return _file(name) if name in FILES else _refusal(404, "There is no such file.")

    @app.get("/api/about")
    async def about() -> Response:
        return JSONResponse(subject.about())

    @app.get("/api/reference")
    async def reference() -> Response:
        return JSONResponse(subject.reference or {"samples": 0})

    @app.get("/api/thumbnails")
    async def thumbnails() -> Response:
        return JSONResponse([views.png(pixels) for pixels in subject.samples])

    @app.post("/api/picture")
    async def picture(request: Request) -> Response:
        content = await _body(request, MAX_BYTES)
        if content is None:
            return _refusal(413, f"The file is larger than the {MAX_BYTES // 2**20} MB that are allowed.")
        return await _answer(lambda: upload(content))

    @app.post("/api/{name}")
    async def answer(name: str, request: Request) -> Response:
        content = await _body(request, MOST_BYTES)
        if content is None or name not in answers:
            return _refusal(404, "There is no such question.")
        try:
            question = json.loads(content)
        except (ValueError, RecursionError):
            question = None
        if not isinstance(question, dict):
            return _refusal(400, "The question is not JSON.")
        return await _answer(lambda: answers[name](question))

    return app


async def _answer(work: Callable[[], Answer]) -> Response:
    try:
        return JSONResponse(await run_in_threadpool(work))
    except KeyError as error:  # a picture that was forgotten
        return _refusal(410, str(error.args[0]))
    except (ValueError, TypeError) as error:
        return _refusal(400, str(error))
    except (MemoryError, torch.OutOfMemoryError):
        return _refusal(503, "There is not enough memory for this now: try again.")


def _refusal(status: int, sentence: str) -> Response:
    sentence = sentence.encode(errors="replace").decode()  # it may name what was asked for
    return JSONResponse({"error": sentence[:1].upper() + sentence[1:].removesuffix(".") + "."}, status)


def _file(name: str) -> Response:
    kind, _ = mimetypes.guess_type(name)
    return Response(PAGE.joinpath(name).read_bytes(), media_type=kind or "text/html")


async def _body(request: Request, most: int) -> bytes | None:
    """The body, unless it is larger; what is too much is not read."""
    parts, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > most:
                return None
            parts.append(chunk)
    except ClientDisconnect:  # nobody waits for the answer
        return None
    return b"".join(parts)


def _whole(question: Answer, name: str) -> int:
    value = question.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number.")
    return value


def _place(model: Any, question: Answer, name: str, last: int) -> tuple[int, int]:
    layer, number = _whole(question, "layer"), _whole(question, name)
    if not 1 <= layer <= len(model.blocks):
        raise ValueError(f"There is no layer {layer}.")
    if not 1 <= number <= last:
        raise ValueError(f"There is no {name} {number}.")
    return layer, number


def _pairs(off: Any, name: str) -> list[tuple[int, int]]:
    pairs = off.get(name, []) if isinstance(off, dict) else None
    if not isinstance(pairs, list) or len(pairs) > MOST_OFF:
        raise ValueError(f"At most {MOST_OFF} {name} can be switched off.")
    if not all(isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair) for pair in pairs):
        raise ValueError(f"{name} must be pairs of a layer and a number.")
    return [(layer, number) for layer, number in pairs]


class _Closed:
    """Lets through what the page asks, by a name under which it is known, and nothing that another site sends."""

    def __init__(self, app: Any, hosts: tuple[str, ...] | None) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    *((name.lower().encode(), value.encode()) for name, value in HEADERS.items()),
                ]
            await send(message)

        answer = self._refusal(scope) or self.app
        await answer(scope, receive, with_headers)
        return None

    def _refusal(self, scope: dict[str, Any]) -> Response | None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        named = headers.get("host", "")
        host = named if named.endswith("]") else named.rsplit(":", 1)[0]
        if self.hosts is not None and host not in self.hosts:
            return _refusal(403, "This page is not known by that name.")
        path = scope["path"]
        if path != "/" and path != STARTING and not path.startswith(("/page/", "/api/")):
            return _refusal(404, "There is no such page.")
        # gradio allows other sites to ask where it is not known as localhost
        foreign = headers.get("origin", named).rpartition("/")[2] != named
        if foreign or (scope["method"] == "POST" and OURS not in headers):
            return _refusal(403, "Questions come from the page itself.")
        return None
