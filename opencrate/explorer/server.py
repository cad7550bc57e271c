"""The page's server: the page's files, and the questions that the page asks.

A picture arrives as the body of a request, is decoded in memory, and is found again by a key that only its visitor has.
It passes through a network once; all further questions about it are answered from that recording.
"""

import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..inspection.recording import Recording, record
from ..sources import Gallery
from . import views
from .access import Access
from .connections import Budget, Connections
from .picture_store import PictureStore, Visitor
from .subject import THIS, Subject, Variant
from .uploads import MAX_BYTES, read_upload

PAGE = Path(__file__).parent / "page"
MAX_QUESTION_BYTES = 2**16
FREE_BYTES = 2**18  # of a body, which is read without asking for room; a small picture never waits for large ones
MAX_OFF = 64  # heads, and coordinates, that can be switched off together
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
PIECE = 2**16  # of an answer
REFUSED = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>opencrate explore</title>
<h1>Not open here</h1><p>{}</p></html>"""

Answer = dict[str, Any]


def build(subject: Subject, access: Access, connections: Connections) -> ASGIApp:
    """The application; what a request holds of the budgets is free again when its answer was sent."""
    questions = _Questions(subject)

    async def computed(request: Request, work: Callable[[], Any]) -> Response:
        await _hold(request, connections.answers)
        if await request.is_disconnected():  # while it waited
            return Response()
        return await _answer(work)

    async def page(request: Request) -> Response:
        return FileResponse(PAGE / "index.html")

    async def about(request: Request) -> Response:
        return JSONResponse(subject.about())

    async def reference(request: Request) -> Response:
        return JSONResponse(subject.reference.means or {"samples": 0})

    async def thumbnails(request: Request) -> Response:
        return await computed(request, lambda: [views.png(pixels) for pixels in subject.samples])

    async def picture(request: Request) -> Response:
        content = await _body(request, MAX_BYTES, connections.uploads)
        if content is None:
            return _refusal(413, f"The file is larger than the {MAX_BYTES // 2**20} MB that are allowed.")
        return await computed(request, lambda: questions.upload(content, request.state.visitor))

    async def question(request: Request) -> Response:
        content, answer = await _body(request, MAX_QUESTION_BYTES), questions.by_name.get(request.path_params["name"])
        if content is None or answer is None:
            return _refusal(404, "There is no such question.")
        try:
            asked = json.loads(content)
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict):
            return _refusal(400, "The question is not JSON.")
        return await computed(request, lambda: answer(asked | {"visitor": request.state.visitor}))

    app = Starlette(
        routes=[
            Route("/", page),
            Mount("/page", StaticFiles(directory=PAGE)),
            Route("/api/about", about),
            Route("/api/reference", reference),
            Route("/api/thumbnails", thumbnails),
            Route("/api/picture", picture, methods=["POST"]),
            Route("/api/{name}", question, methods=["POST"]),
        ],
        exception_handlers={
            404: lambda request, error: _refusal(404, "There is no such page."),
            TimeoutError: lambda request, error: _refusal(503, "Too much is asked at once. Try again in a minute."),
        },
    )
    app.router.redirect_slashes = False
    return _guarded(app, access)


class _Questions:
    """The answers to what the page asks about pictures; what is wrong with a question is a ValueError."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self.store, self._opening = subject, PictureStore(), Lock()
        self.by_name: dict[str, Callable[[Answer], Answer]] = {
            "sample": self.sample,
            "look": self.look,
            "attention": self.attention,
            "head": self.head,
            "coordinate": self.coordinate,
        }

    def upload(self, content: bytes, visitor: Visitor = ()) -> Answer:
        with self._opening:  # one at a time is in memory in its full size
            upload = read_upload(content, self.subject.model.patch_embed.in_chans)
            picture, notes = self.subject.prepare(upload.image), upload.notes
            del upload
        with self.subject.turn():
            return self._open(picture, visitor, notes)

    def sample(self, question: Answer) -> Answer:
        picture = self.subject.sample(_integer(question, "number"))
        with self.subject.turn():
            return self._open(picture, question.get("visitor", ()))

    def look(self, question: Answer) -> Answer:
        with self.subject.turn():
            return views.look(self._recording(question), self.subject.study.class_name)

    def attention(self, question: Answer) -> Answer:
        with self.subject.turn():
            return views.attention(self._recording(question), _integer(question, "token"))

    def head(self, question: Answer) -> Answer:
        return self._detail(question, "head", views.head)

    def coordinate(self, question: Answer) -> Answer:
        return self._detail(question, "coordinate", views.coordinate)

    def _detail(self, question: Answer, kind: str, view: Callable[[Recording, int, int], Answer]) -> Answer:
        layer, number = _integer(question, "layer"), _integer(question, kind)
        with self.subject.turn():
            shown = view(self._recording(question), layer, number)
        return shown | {"reference": self.subject.crops(_variant(question), layer, kind, number)}

    def _open(self, picture: Gallery, visitor: Visitor, notes: tuple[str, ...] = ()) -> Answer:
        recording = record(self.subject.model, picture.images)
        look = views.look(recording, self.subject.study.class_name)
        key = self.store.add(picture, visitor)
        self.store.keep(key, Variant(), recording)
        return {"key": key, "notes": notes, "shown": views.png(picture.shown[0]), **look}

    def _recording(self, question: Answer) -> Recording:
        """The recording of a question's picture in its variant of the network; it is made where none is kept."""
        key, variant = str(question.get("key")), _variant(question)
        picture, kept = self.store.get(key), self.store.recordings.get((key, variant))
        return kept or self.store.keep(key, variant, record(self.subject.variant(variant), picture.images))


async def _hold(request: Request, budget: Budget, amount: int = 1) -> None:
    await request.state.held.enter_async_context(budget.taking(request.state.visitor[0], amount))


async def _answer(work: Callable[[], Any]) -> Response:
    try:
        return JSONResponse(await run_in_threadpool(work))
    except KeyError as error:  # a picture that is no longer kept
        return _refusal(410, str(error.args[0]))
    except (ValueError, TypeError) as error:
        return _refusal(400, str(error))
    except (MemoryError, torch.OutOfMemoryError):
        return _refusal(503, "There is not enough memory for this now. Try again.")


def _refusal(status: int, sentence: str) -> Response:
    sentence = sentence.encode(errors="replace").decode()  # it may quote the question
    return JSONResponse({"error": sentence[:1].upper() + sentence[1:].removesuffix(".") + "."}, status)


async def _body(request: Request, max_bytes: int, budget: Budget | None = None) -> bytes | None:
    """The body, or None for one that is larger, which is not read to its end.

    Above FREE_BYTES the rest waits until the budget has room for the whole body.
    """
    content = bytearray()
    try:
        async for chunk in request.stream():
            content += chunk
            if len(content) > max_bytes:
                return None
            if budget is not None and len(content) > FREE_BYTES:
                declared = request.headers.get("content-length", "")
                await _hold(request, budget, min(int(declared), max_bytes) if declared.isdecimal() else max_bytes)
                budget = None
    except ClientDisconnect:  # nobody waits for the answer
        return None
    return bytes(content)


def _integer(question: Answer, name: str) -> int:
    value = question.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be an integer.")
    return value


def _variant(question: Answer) -> Variant:
    off = question.get("off", {})
    return Variant(str(question.get("network", THIS)), _pairs(off, "heads"), _pairs(off, "atoms"))


def _pairs(off: Any, name: str) -> tuple[tuple[int, int], ...]:
    """Pairs of a layer and a number, in one order whatever the order in which they were switched off."""
    pairs = off.get(name, []) if isinstance(off, dict) else None
    if not isinstance(pairs, list) or len(pairs) > MAX_OFF:
        raise ValueError(f"At most {MAX_OFF} {name} can be switched off.")
    if not all(isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair) for pair in pairs):
        raise ValueError(f"{name} must be pairs of a layer and a number.")
    return tuple(sorted({(layer, number) for layer, number in pairs}))


def _guarded(app: ASGIApp, access: Access) -> ASGIApp:
    """The application behind its rules: nothing to whom `access` refuses it, HEADERS on every answer."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        refusal = access.refusal(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if refusal is None and scope["state"]["cookie"] is not None:
                    headers.append("Set-Cookie", scope["state"]["cookie"])
                await send(message)
                return
            body = message.get("body", b"")  # in pieces, so that the server can wait for its reader
            for start in range(0, len(body) - PIECE, PIECE):
                await send({**message, "body": body[start : start + PIECE], "more_body": True})
            await send({**message, "body": body[max(0, (len(body) - 1) // PIECE * PIECE) :]})

        if refusal is None:
            async with AsyncExitStack() as scope["state"]["held"]:
                await app(scope, receive, send_with_headers)
        elif "text/html" in Headers(scope=scope).get("accept", ""):  # a person who has opened the address
            await HTMLResponse(REFUSED.format(refusal), 403)(scope, receive, send_with_headers)
        else:
            await _refusal(403, refusal)(scope, receive, send_with_headers)

    return guarded
