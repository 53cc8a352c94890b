"""Delay from an event to the page, cost of the server, frames of a large site, memory of a day.

Arrives: options; starts real processes: a publisher, `waystage view`, a page, a browser.
Leaves: event_to_page_p99_ms, cpu_pct, lost; frame_p95_ms; memory_mib.
Must not know: policies, switches.

A publisher sends 10,000 events a second over the backplane (jobs, flows and their progress, link use once a second). A
page reads the server's frames; the delay is from the time stamp of a job's start, made before `publish`, to the page's
receipt of its row, both by this machine's clock. `cpu_pct` is the CPU time of the server's process by the time
measured. `lost` are events that the server did not fold, and jobs that no frame named.

A browser (chromium, drawn in software) shows 1,024 hosts of which 40 links change each second: `frame_p95_ms` is the
95th percentile of the time between two of its frames. Above 1,000 hosts they are drawn by edge switch;
`frame_all_hosts_p95_ms` in the details is with each drawn.

A day of one frame a second with 40 changes, jobs and flows is kept by a server's process: `memory_mib` is all of its
resident memory. There is no peer that shows the same.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from waystage.bench import BenchError, BenchOptions, measure_apart, own_process
from waystage.stats import median, percentile

EVENTS_PER_S, SECONDS, SECONDS_QUICK = 10_000, 20, 3
HOSTS, CHANGES_PER_S, FRAME_SECONDS = 1024, 40, 15
DAY_S, DAY_QUICK_S = 86_400, 900
PARTS = str(Path(__file__).with_name("_view_parts.py"))
BROWSER = "/usr/bin/chromium"
TAKES_S = 260, 40


def run(options: BenchOptions) -> dict[str, Any]:
    figures: dict[str, float] = {}
    details: dict[str, Any] = {}
    seconds = SECONDS_QUICK if options.quick else SECONDS
    options.progress(f"{EVENTS_PER_S:,} events a second", 0.0)
    stream = _stream(seconds)
    figures |= {name: stream.pop(name) for name in ("event_to_page_p99_ms", "cpu_pct", "lost")}
    details["stream"] = stream
    options.progress("a page of 1,024 hosts", 0.25)
    if Path(BROWSER).exists():
        drawn = 3 if options.quick else FRAME_SECONDS
        details["frames"] = _frames(drawn, 1000)
        figures["frame_p95_ms"] = details["frames"]["p95_ms"]
        if options.quick:
            options.limit.missing.append("a page of all hosts")
        else:
            details["frames_all_hosts"] = _frames(drawn, 2 * HOSTS)
            details["frame_all_hosts_p95_ms"] = details["frames_all_hosts"]["p95_ms"]
    else:
        details["frames"] = f"{BROWSER} is missing: install Debian's chromium"
    options.progress("24 hours of history", 0.5)
    day = measure_apart(PARTS, "day", DAY_QUICK_S if options.quick else DAY_S, HOSTS, CHANGES_PER_S)
    figures["memory_mib"] = day["memory_mib"]
    details["history"] = day
    return {"figures": figures, "peers": {}, "details": details}


# -- delay and cost -----------------------------------------------------------------------------------


def _stream(seconds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="waystage-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        endpoint = f"unixsock-stream/{folder}/bench.sock"
        publisher = _process(stack, own_process(PARTS, "publish", endpoint, EVENTS_PER_S, seconds))
        _line(publisher)
        view = [sys.executable, "-m", "waystage", "view", "--quiet", "--listen", "127.0.0.1:0"]
        ready = folder / "ready"
        server = _process(stack, [*view, "--endpoint", endpoint, "--ready-file", str(ready)])
        deadline = time.monotonic() + 60
        while not ready.exists():
            if time.monotonic() > deadline or server.poll() is not None:
                raise BenchError("the server did not start")
            time.sleep(0.05)
        page = _Page(ready.read_text().strip())
        reader = threading.Thread(target=page.read, daemon=True)
        reader.start()
        page.first.wait(30)
        time.sleep(4.0)  # its first question for a snapshot, which no controller answers, is over
        begun_events, begun_cpu, begun = page.events, _cpu_s(server.pid), time.monotonic()
        _tell(publisher, "go")
        sent = json.loads(_line(publisher))
        cpu = _cpu_s(server.pid) - begun_cpu
        took = time.monotonic() - begun
        deadline = time.monotonic() + 20
        while page.events - begun_events < sent["events"] and time.monotonic() < deadline:
            time.sleep(0.05)
        folded = page.by_type()
        control = sum(max(0, count - folded.get(name, 0)) for name, count in sent["control"].items())
        missing = len(set(sent["jobs"]) - set(page.delays))
        delays = sorted(page.delays.values())
        page.close()
        if not delays:
            raise BenchError("no event reached the page")
        return {
            "event_to_page_p99_ms": round(percentile(delays, 99), 1),
            "cpu_pct": round(100 * cpu / took, 1),
            "lost": max(0, sent["events"] - (page.events - begun_events)) + missing,
            "lost_control": control,
            "jobs_not_shown": missing,
            "event_to_page_median_ms": round(median(delays), 1),
            "events": sent["events"],
            "rate_per_s": round(sent["events"] / sent["seconds"]),
            "frames": page.frames,
            "frame_kib": round(page.bytes / max(1, page.frames) / 1024, 1),
            "jobs_seen": len(delays),
        }


class _Page:
    """Reads frames as a browser does, and notes when it first sees each job."""

    def __init__(self, link: str) -> None:
        address, _, token = link.partition("/#token=")
        self._host = address.removeprefix("http://")
        self._headers = {"Authorization": f"Bearer {token}"}
        self._connection = http.client.HTTPConnection(self._host, timeout=120)
        self._connection.request("GET", "/api/frames", headers=self._headers)
        self._answer = self._connection.getresponse()
        self.delays: dict[str, float] = {}
        self.events = self.frames = self.bytes = 0
        self.first = threading.Event()

    def read(self) -> None:
        with contextlib.suppress(OSError, AttributeError, http.client.HTTPException):  # closed meanwhile
            self._read()

    def _read(self) -> None:
        while line := self._answer.readline():
            if not line.startswith(b"data: "):
                continue
            now = time.time_ns() / 1e6
            frame = json.loads(line[6:])
            self.frames += 1
            self.bytes += len(line)
            for job_id, row in frame.get("set", {}).get("jobs", {}).items():
                if job_id not in self.delays and row["phases"]:
                    self.delays[job_id] = now - row["phases"][0][1]
            self.events = frame.get("counts", {}).get("events", self.events)
            self.first.set()

    def by_type(self) -> dict[str, int]:
        """Events that the server has folded."""
        from prometheus_client.openmetrics.parser import text_string_to_metric_families

        connection = http.client.HTTPConnection(self._host, timeout=60)
        connection.request("GET", "/metrics", headers=self._headers)
        text = connection.getresponse().read().decode()
        connection.close()
        families = {family.name: family for family in text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]
        return {sample.labels["type"]: int(sample.value) for sample in families["waystage_events"].samples}

    def close(self) -> None:
        self._connection.close()


def _process(stack: ExitStack, command: list[str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def end() -> None:
        if process.poll() is None:
            process.terminate()
        process.wait(30)

    stack.callback(end)
    return process


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise BenchError(f"a process of the benchmark has ended: {process.args!r}")
    return line


def _tell(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()


def _cpu_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- frames -------------------------------------------------------------------------------------------

_COUNT = """(seconds) => new Promise((done) => {
  const times = []; let last = performance.now(); const end = last + 1000 * seconds;
  const step = (now) => { times.push(now - last); last = now; if (now < end) requestAnimationFrame(step); else done(times); };
  requestAnimationFrame(step);
})"""


def _frames(seconds: int, collapse_above: int) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    with ExitStack() as stack:
        server = _process(stack, own_process(PARTS, "site", HOSTS, CHANGES_PER_S, collapse_above))
        link = _line(server).strip()
        playwright = stack.enter_context(sync_playwright())
        # As root, chromium has no sandbox.
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        stack.callback(browser.close)
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        page.goto(link)
        page.wait_for_function("() => window.waystage && waystage.live.counts.events > 100", timeout=60_000)
        before = page.evaluate("() => waystage.live.counts.events")
        times = page.evaluate(_COUNT, seconds)
        changes = page.evaluate("() => waystage.live.counts.events") - before
        idle = browser.new_page(viewport={"width": 1440, "height": 1000})
        still = idle.evaluate(_COUNT, min(seconds, 3))
        return {
            "p95_ms": round(percentile(times, 95), 1),
            "median_ms": round(median(times), 1),
            "worst_ms": round(max(times), 1),
            "empty_page_p95_ms": round(percentile(still, 95), 1),
            "events_meanwhile": changes,
            "seconds": seconds,
        }
