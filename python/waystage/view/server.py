"""The HTTP server of the view: a page, frames as server-sent events, the history, metrics.

Arrives: a feed; requests.
Leaves: responses; every one that holds data needs the token.
Must not know: the backplane, what frames mean. The only import of aiohttp.

Limits: connections in all, pages, time to send a request, bytes that wait for a page. What exceeds one is refused or
closed; nothing waits for a reader.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any

import msgspec
from aiohttp import web

from waystage.view.access import Gate, Refusal
from waystage.view.feed import Feed
from waystage.view.hub import PAGES, Hub, TooMany

log = logging.getLogger(__name__)

DELTA_S = 0.1
"""At most ten deltas a second."""

PING_S = 15.0
"""A page without frames gets a comment so often: it notices a server that is gone, and we a page that is."""

WRITE_S = 10.0
"""A page that reads nothing for this time is dropped."""

FINISH_S = 2.0
"""To read the last frame of a run."""

REQUEST_S = 10.0
"""To send the first request of a connection."""

SEND_BUFFER = 256 << 10
"""Of the kernel, for each connection: unread frames wait in the queue, which is bounded, and not there."""

MOST_BODY = 4096

FILES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}

SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ViewServer:
    """`fold` is called before each delta and brings the feed up to date; it returns the time in ns."""

    def __init__(
        self,
        feed: Feed,
        gate: Gate,
        fold: Callable[[], int],
        *,
        pages: int = PAGES,
        metrics: Callable[[ViewServer], str] | None = None,
        secure: bool = False,
    ) -> None:
        self.feed, self.hub = feed, Hub(feed.whole, pages=pages)
        self._gate, self._fold, self._metrics, self._secure = gate, fold, metrics, secure
        self._most = 4 * pages + 64
        self._connections: dict[int, _Counted] = {}
        self._port = 0
        self._files = _page_files()
        self._tasks: list[asyncio.Task[None]] = []
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self.refused = 0

    # -- life -------------------------------------------------------------------------------------------

    async def start(self, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Serve on a socket that is bound."""
        app = web.Application(middlewares=[self._guard], client_max_size=MOST_BODY)
        app.add_routes(
            [
                web.get("/", self._page),
                web.get("/page/{name:.+}", self._file),
                web.post("/api/session", self._session),
                web.get("/api/about", self._about),
                web.get("/api/frames", self._frames),
                web.get("/api/at", self._at),
                web.get("/api/timeline", self._timeline),
                web.get("/api/hosts", self._hosts),
                web.get("/metrics", self._openmetrics),
            ]
        )
        runner = web.AppRunner(app, access_log=None, keepalive_timeout=30.0)
        await runner.setup()
        self._runner = runner
        assert runner.server is not None
        self._port = listener.getsockname()[1]
        factory = runner.server
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Counted(self, factory()), sock=listener, ssl=tls, backlog=256
        )
        self._tasks = [loop.create_task(self._deltas())]

    async def stop(self) -> None:
        """Close every page; those of a run get its last frame and its end first."""
        for task in self._tasks:
            task.cancel()
        if self._server is not None:
            self._server.close()
        if self.feed.about.mode == "run":
            self._send_delta()
            self.hub.finish("the run has ended")
            deadline = asyncio.get_running_loop().time() + FINISH_S
            while len(self.hub) and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(0.02)
        self.hub.close("the server ends")
        if self._runner is not None:
            await asyncio.sleep(0)
            await self._runner.cleanup()

    async def _deltas(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            self._send_delta()
            # From start to start, so that what a delta takes does not delay the next; pages are served in any case.
            await asyncio.sleep(max(DELTA_S / 4, begun + DELTA_S - loop.time()))

    def _send_delta(self) -> None:
        try:
            taken = self.feed.take(self._fold())
            if taken is not None:
                self.hub.send(taken[0].seq, taken[1])
        except Exception:
            log.exception("a frame could not be made")

    # -- connections ------------------------------------------------------------------------------------

    def opened(self, connection: _Counted, transport: asyncio.Transport) -> bool:
        """Whether there is room for this connection."""
        if len(self._connections) >= self._most:
            self.refused += 1
            return False
        self._connections[id(connection.inner)] = connection
        raw = transport.get_extra_info("socket")
        with contextlib.suppress(OSError, AttributeError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)

        def expect() -> None:
            if not connection.asked:
                transport.abort()

        asyncio.get_running_loop().call_later(REQUEST_S, expect)
        return True

    def closed(self, connection: _Counted) -> None:
        self._connections.pop(id(connection.inner), None)

    # -- answers ----------------------------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = self._connections.get(id(request.protocol))
        if connection is not None:
            connection.asked = True
        refusal = self._gate.check_source(request.headers)
        if (
            refusal is None
            and request.path.startswith(("/api/", "/metrics"))
            and request.path != "/api/session"
        ):
            cookie = request.cookies.get(self._cookie, "")
            refusal = self._gate.check_reader(cookie, request.headers.get("Authorization", ""))
        if refusal is not None:
            return _refused(refusal)
        try:
            return await handler(request)
        except web.HTTPException as error:
            return _refused(Refusal(error.status, error.reason or "refused"))

    @property
    def _cookie(self) -> str:
        """Cookies do not tell ports apart, and several views may run on one host."""
        return f"waystage-view-{self._port}"

    async def _page(self, request: web.Request) -> web.StreamResponse:
        return _file(self._files["index.html"], ".html")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in self._files:
            return _refused(Refusal(404, "there is no such file"))
        return _file(self._files[name], name[name.rfind(".") :])

    async def _session(self, request: web.Request) -> web.StreamResponse:
        """A token for a cookie, which scripts cannot read."""
        body = await request.text()
        if not self._gate.knows(body.strip()):
            return _refused(
                Refusal(401, "the token is wrong: open the whole address that `waystage view` printed")
            )
        response = web.Response(status=204, headers=SECURITY)
        response.set_cookie(
            self._cookie, self._gate.session, path="/", httponly=True, samesite="Strict", secure=self._secure
        )
        return response

    async def _about(self, request: web.Request) -> web.StreamResponse:
        return _json(msgspec.json.encode(self.feed.about))

    async def _frames(self, request: web.Request) -> web.StreamResponse:
        try:
            page = self.hub.join(request.headers.get("Last-Event-ID", ""))
        except TooMany as error:
            return _refused(Refusal(503, str(error)), {"Retry-After": "10"})
        response = web.StreamResponse(headers=SECURITY | {"Content-Type": "text/event-stream"})
        try:
            await response.prepare(request)
            while not page.dropped and not page.finished:
                data = await page.get(PING_S)
                if not page.dropped:
                    await asyncio.wait_for(response.write(data or b": still here\n\n"), WRITE_S)
        except (TimeoutError, ConnectionError):
            page.drop(page.dropped or f"it has read nothing for {WRITE_S:g} s")
        finally:
            self.hub.leave(page)
            if page.dropped and request.transport is not None:
                log.info("a page of %s was dropped: %s", request.remote, page.dropped)
                request.transport.abort()
        return response

    async def _at(self, request: web.Request) -> web.StreamResponse:
        time_ms = _number(request, "t")
        if time_ms is None:
            return _refused(Refusal(400, "give ?t=, a time in ms"))
        data = self.feed.at(time_ms)
        return _refused(Refusal(404, "there is no history yet")) if data is None else _json(data)

    async def _timeline(self, request: web.Request) -> web.StreamResponse:
        points = min(max(_number(request, "points") or 600, 10), 2000)
        found = self.feed.timeline(points, _number(request, "from"), _number(request, "to"))
        return _json(msgspec.json.encode(found))

    async def _hosts(self, request: web.Request) -> web.StreamResponse:
        return _json(msgspec.json.encode(self.feed.hosts_at(request.query.get("switch", ""))))

    async def _openmetrics(self, request: web.Request) -> web.StreamResponse:
        if self._metrics is None:
            return _refused(Refusal(404, "a recorded run has no metrics"))
        kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
        return web.Response(
            body=self._metrics(self).encode("utf-8"), headers=SECURITY | {"Content-Type": kind}
        )


class _Counted(asyncio.Protocol):
    """aiohttp's protocol of one connection, behind the limits of the server. `asked`: a request has come."""

    def __init__(self, server: ViewServer, inner: Any) -> None:
        self._server, self.inner = server, inner
        self.asked = False
        self._open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._open = self._server.opened(self, transport)
        if self._open:
            self.inner.connection_made(transport)
        else:
            transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self._open:
            self._server.closed(self)
            self.inner.connection_lost(error)

    def data_received(self, data: bytes) -> None:
        if self._open:
            self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        return bool(self.inner.eof_received()) if self._open else None

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()


def _page_files() -> dict[str, bytes]:
    """Every file of the page by its path; they are read once, so that no request names a file."""
    found: dict[str, bytes] = {}

    def read(folder: Any, prefix: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                read(entry, f"{prefix}{entry.name}/")
            elif entry.name[entry.name.rfind(".") :] in FILES:
                found[prefix + entry.name] = entry.read_bytes()

    read(resources.files("waystage.view") / "page", "")
    return found


def _file(data: bytes, suffix: str) -> web.Response:
    response = web.Response(body=data, headers=SECURITY | {"Content-Type": f"{FILES[suffix]}; charset=utf-8"})
    response.enable_compression()
    return response


def _json(data: bytes) -> web.Response:
    response = web.Response(body=data, headers=SECURITY | {"Content-Type": "application/json"})
    if len(data) > 8192:
        response.enable_compression()
    return response


def _refused(refusal: Refusal, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        status=refusal.status,
        body=msgspec.json.encode({"error": refusal.reason}),
        headers=SECURITY | {"Content-Type": "application/json"} | (headers or {}),
    )


def _number(request: web.Request, name: str) -> int | None:
    text = request.query.get(name, "")
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 15 else None
