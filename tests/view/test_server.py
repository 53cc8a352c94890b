"""The server of the view, over real sockets: what is refused, what is bounded, what a page gets."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from harness import WAIT_S, wait_until
from waystage import events
from waystage.events import Envelope, Event
from waystage.view import hub as hubs
from waystage.view.feed import About, Feed
from waystage.view.hub import Hub, TooMany
from waystage.view.serving import Options, Serving, ServingError

TOKEN = "a-token-of-the-test"


class Served:
    """A server in a thread, fed by the test."""

    def __init__(self, serving: Serving, feed: Feed) -> None:
        self.serving, self.feed = serving, feed
        self.port = int(serving.address.rstrip("/").rpartition(":")[2])

    def tell(self, *told: Event) -> None:
        self.feed.apply(
            [Envelope(event=event, event_id=f"{id(event)}", time_ns=time.time_ns()) for event in told]
        )

    def ask(
        self, path: str, method: str = "GET", body: str | None = None, **headers: str
    ) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {"Host": f"127.0.0.1:{self.port}"} | names)
        return connection.getresponse()

    def read(self, path: str) -> Any:
        answer = self.ask(path, Authorization=f"Bearer {TOKEN}")
        assert answer.status == 200, answer.read()
        return json.loads(answer.read())

    def stream(self, last: str = "") -> http.client.HTTPResponse:
        headers = {"Last_Event_ID": last} if last else {}
        return self.ask("/api/frames", Authorization=f"Bearer {TOKEN}", **headers)


def frame_of(answer: http.client.HTTPResponse) -> tuple[str, dict[str, Any]]:
    """The next frame of a stream, with its id."""
    found = ""
    while True:
        line = answer.readline().decode()
        assert line, "the stream has ended"
        if line.startswith("id: "):
            found = line[4:].strip()
        if line.startswith("data: "):
            return found, json.loads(line[6:])


@contextmanager
def serve(**options: Any) -> Iterator[Served]:
    feed = Feed(About(title="test", mode="live"))
    serving = Serving(feed, time.time_ns, Options(listen="127.0.0.1:0", token=TOKEN, **options))
    with serving.in_thread():
        yield Served(serving, feed)


@pytest.fixture
def served() -> Iterator[Served]:
    with serve() as found:
        yield found


def test_without_the_token_the_page_opens_and_holds_nothing(served: Served) -> None:
    served.tell(events.JobStarted(job_id="secret-job", nodes=("c1",)))
    page = served.ask("/")
    assert page.status == 200 and b"secret-job" not in page.read()
    assert "default-src 'none'" in (page.getheader("Content-Security-Policy") or "")
    for path in (
        "/api/about",
        "/api/frames",
        "/api/at?t=0",
        "/api/timeline",
        "/api/hosts?switch=x",
        "/metrics",
    ):
        answer = served.ask(path)
        body = answer.read()
        assert answer.status == 401 and b"open the whole address" in body and TOKEN.encode() not in body


def test_the_token_gives_a_cookie_that_scripts_cannot_read(served: Served) -> None:
    assert served.ask("/api/session", "POST", "wrong").status == 401
    answer = served.ask("/api/session", "POST", TOKEN)
    cookie = answer.getheader("Set-Cookie") or ""
    assert (
        answer.status == 204 and "HttpOnly" in cookie and "SameSite=Strict" in cookie and TOKEN not in cookie
    )
    assert served.ask("/api/about", Cookie=cookie.partition(";")[0]).status == 200


def test_another_origin_or_name_is_refused_even_with_the_token(served: Served) -> None:
    bearer = f"Bearer {TOKEN}"
    assert served.ask("/api/about", Authorization=bearer, Origin="http://evil.example.org").status == 403
    assert served.ask("/api/about", Authorization=bearer, Sec_Fetch_Site="cross-site").status == 403
    assert served.ask("/api/about", Authorization=bearer, Host="evil.example.org").status == 421
    assert served.ask("/", Host="evil.example.org").status == 421


def test_files_outside_the_page_are_not_served(served: Served) -> None:
    for path in (
        "/page/../server.py",
        "/page/%2e%2e/server.py",
        "/page//etc/passwd",
        "/page/vendor",
        "/nothing",
    ):
        assert served.ask(path).status == 404


def test_a_page_gets_a_whole_frame_and_then_what_changes(served: Served) -> None:
    served.tell(events.JobStarted(job_id="1", nodes=("c1",)))
    wait_until(lambda: served.read("/api/timeline")["span"])
    stream = served.stream()
    _, frame = frame_of(stream)
    assert frame["whole"] and set(frame["set"]["jobs"]) == {"1"}
    served.tell(events.JobStarted(job_id="2", nodes=("c2",)))
    while "2" not in frame.get("set", {}).get("jobs", {}):
        last, frame = frame_of(stream)
    assert set(frame["set"]["jobs"]) == {"2"} and "whole" not in frame
    stream.close()
    served.tell(events.JobStarted(job_id="3", nodes=("c3",)))
    again = served.stream(last)
    number, frame = frame_of(again)
    while "3" not in frame.get("set", {}).get("jobs", {}):
        assert "whole" not in frame
        number, frame = frame_of(again)
    assert "whole" not in frame and number != last
    _, frame = frame_of(served.stream("0-99999999999999999999"))
    assert frame["whole"] and set(frame["set"]["jobs"]) == {"1", "2", "3"}


def test_an_earlier_time_can_be_shown_back_and_forth(served: Served) -> None:
    served.tell(events.JobStarted(job_id="0", nodes=()))
    wait_until(lambda: served.read("/api/timeline")["span"])
    for n in range(4):
        served.tell(events.JobStarted(job_id=f"{n}", nodes=()))
        wait_until(lambda n=n: len(served.read("/api/at?t=99999999999999")["set"].get("jobs", {})) == n + 1)
    low, high = served.read("/api/timeline")["span"]
    seen = [
        len(served.read(f"/api/at?t={t}")["set"].get("jobs", {})) for t in (low, high, low, -5, high + 10**6)
    ]
    assert seen[0] == seen[2] == seen[3] < seen[1] == seen[4] == 4
    for wrong in ("", "t=x", "t=1e9", "t=" + "9" * 40):
        assert served.ask(f"/api/at?{wrong}", Authorization=f"Bearer {TOKEN}").status == 400


def test_pages_beyond_the_limit_are_refused_and_the_others_go_on() -> None:
    with serve(pages=3) as served:
        served.tell(events.JobStarted(job_id="1", nodes=()))
        open_ = [served.stream() for _ in range(3)]
        assert all(frame_of(stream)[1] is not None for stream in open_)
        refused = served.stream()
        assert refused.status == 503 and b"3 pages are open" in refused.read()
        served.tell(events.JobStarted(job_id="2", nodes=()))
        assert all(frame_of(stream)[1] is not None for stream in open_)
        for stream in open_:
            stream.close()
        wait_until(lambda: served.stream().status == 200)


def test_a_thousand_connections_at_once_are_bounded() -> None:
    with serve(pages=4) as served:
        sockets = []
        for _ in range(1000):
            try:
                sockets.append(socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_S))
            except OSError:
                break
        wait_until(lambda: served.serving.server.refused > 0)
        for one in sockets:
            one.close()
        wait_until(lambda: _answers(served))


def _answers(served: Served) -> bool:
    try:
        return served.ask("/").status == 200
    except (OSError, http.client.HTTPException):
        return False


def test_a_page_that_reads_nothing_is_dropped_and_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hubs, "QUEUE_BYTES", 300_000)
    with serve() as served:
        deaf = socket.create_connection(("127.0.0.1", served.port))
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = f"GET /api/frames HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        deaf.sendall(request.encode())
        wait_until(lambda: len(served.serving.server.hub) == 1)
        stream = served.stream()
        nodes = tuple(f"{'n' * 200}{i}" for i in range(64))

        def dropped() -> bool:
            """No frame is sent before the page that reads has had the one before."""
            name = f"{time.time_ns()}"
            served.tell(*(events.JobStarted(job_id=f"{name}-{i}", nodes=nodes) for i in range(20)))
            while f"{name}-19" not in frame_of(stream)[1].get("set", {}).get("jobs", {}):
                pass
            return served.serving.server.hub.dropped == 1

        wait_until(dropped)
        assert len(served.serving.server.hub) == 1
        deaf.close()


def test_a_queue_is_bounded_in_frames_and_says_why_it_is_dropped() -> None:
    async def run() -> None:
        hub = Hub(lambda: (0, b"{}"), pages=1)
        page = hub.join()
        for n in range(hubs.QUEUE + 5):
            hub.send(n + 1, b"{}")
        assert "has read nothing" in page.dropped and await page.get(0.1) == b""
        with pytest.raises(TooMany):
            hub.join()
        hub.leave(page)
        assert hub.dropped == 1

    asyncio.run(run())


def test_beyond_this_machine_it_needs_a_certificate() -> None:
    feed = Feed(About(title="", mode="live"))
    with pytest.raises(ServingError, match="ssh -L"):
        Serving(feed, lambda: 0, Options(listen="0.0.0.0:0"))
    for wrong in ("no-port", "127.0.0.1:99999", ":80", "127.0.0.1:"):
        with pytest.raises(ServingError):
            Serving(feed, lambda: 0, Options(listen=wrong))
