"""`waystage top`: the live view in a terminal.

Arrives: events on the backplane.
Leaves: a screen that is drawn anew until Ctrl-C, or once; with --json the whole frame.
Must not know: how frames are made.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import click

from waystage.cli.common import ExitCode, Output, UserError
from waystage.cli.connecting import configuration, connection_options

ROWS = 8
"""Of each table."""

CLASS_STYLES = {"mpi": "blue", "staging": "red", "io": "yellow", "wan": "magenta"}

SETTLE_S = 5.0
"""With --once: how long the state of the controller is waited for."""


@click.command()
@click.option("--once", is_flag=True, help="Print one screen and exit.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1, max=60),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two screens.",
)
@connection_options
def command(once: bool, interval: float, endpoint: str | None, config: Path | None, output: Output) -> None:
    """Show links, jobs, flows, decisions and controllers in the terminal until Ctrl-C; `waystage view` has more.

    With --json, print one object: the frame that a page would show.
    """
    from waystage.backplane import BackplaneError
    from waystage.view.feed import About, Feed
    from waystage.view.frames import decode
    from waystage.view.live import Live

    feed = Feed(About(title="", mode="live"), history_bytes=0)
    try:
        live = Live(configuration(endpoint, config), feed)
    except BackplaneError as error:
        raise UserError(str(error), ExitCode.FAILED) from None
    with contextlib.closing(live):
        if once or output.json:
            _settle(live)
            feed.take(live.fold())
            data = feed.whole()[1]
            if output.json:
                import json

                output.result(json.loads(data))
            else:
                _print(decode(data))
            return
        _follow(live, feed, interval)


def _settle(live: Any) -> None:
    """Until the controller's state is there, or no controller answers."""
    end = time.monotonic() + SETTLE_S
    while not live.settled and time.monotonic() < end:
        live.fold()
        time.sleep(0.05)


def _print(frame: Any) -> None:
    from rich.console import Console

    Console(highlight=False).print(_screen(frame))


def _follow(live: Any, feed: Any, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live as Screen

    from waystage.view.frames import decode

    with Screen(console=Console(highlight=False), screen=True, auto_refresh=False) as screen:
        while True:
            due = time.monotonic() + interval
            feed.take(live.fold())
            screen.update(_screen(decode(feed.whole()[1])), refresh=True)
            while (left := due - time.monotonic()) > 0:
                live.fold()  # what arrives waits no longer than a tenth of a second
                time.sleep(min(left, 0.1))


def _screen(frame: Any) -> Any:
    from rich.console import Group

    rows = frame.set
    parts = [
        _head(frame),
        _controllers(rows),
        _links(frame),
        _jobs(rows, frame.t),
        _flows(rows),
        _decisions(rows),
    ]
    return Group(*(part for part in parts if part is not None))


def _head(frame: Any) -> Any:
    from rich.text import Text

    status = frame.set["status"]["now"]
    words = [
        f"{status['running']} jobs run, {status['staging']} stage",
        f"{status['flows']} flows",
        f"{frame.counts.get('events', 0)} events",
    ]
    if status.get("plan"):
        words.append(f"paths: {status['plan']}")
    text = Text(time.strftime("%H:%M:%S "), style="bold")
    text.append("  ".join(words), style="not bold")
    for name, rate in status["rates"].items():
        text.append(f"  {name} {_rate(rate)}", style=CLASS_STYLES[name])
    return text


def _controllers(rows: Any) -> Any:
    from rich.text import Text

    known = [
        (n, row)
        for n, row in rows.get("publishers", {}).items()
        if row["role"] != "publisher" and row["since"]
    ]
    text = Text()
    for name, row in sorted(known, key=lambda entry: (bool(entry[1]["present"]), entry[0]))[: 2 * ROWS]:
        here = row["present"] > 0
        text.append(f"{'here' if here else 'GONE'} ", style="green" if here else "bold red")
        text.append(f"{row['role']} {name}   ")
    return text if known else None


def _links(frame: Any) -> Any:
    capacity = {link["id"]: link for link in (frame.topology or {}).get("links", ())}
    found = []
    for name, row in frame.set.get("links", {}).items():
        link = capacity.get(name)
        if link is None:
            continue
        if row.get("down"):
            found.append((2.0, [name, "", "down", ""]))
        for way, ends in (("ab", (link["a"], link["b"])), ("ba", (link["b"], link["a"]))):
            use = row.get(way)
            if use:
                classes = ", ".join(
                    f"{c} {_rate(n)}" for c, n in zip(CLASS_STYLES, use[1:], strict=True) if n
                )
                share = use[0] / link["bps"] if link["bps"] else 0.0
                found.append((share, [name, f"{ends[0]} > {ends[1]}", f"{share:.0%}", classes]))
    found.sort(key=lambda entry: -entry[0])
    return _table("Busiest links", ["link", "direction", "use", "classes"], [cells for _, cells in found])


def _jobs(rows: Any, now: int) -> Any:
    found = []
    for name, row in rows.get("jobs", {}).items():
        if row.get("ended") or not row["phases"]:
            continue
        doing = ", ".join({"in": "stages in", "out": "stages out", "run": "runs", "io": "file system"}[p[0]] for p in row["phases"] if p[2] is None)  # fmt: skip
        since = min(phase[1] for phase in row["phases"])
        nodes = row.get("count", len(row["nodes"]))
        found.append([name, row.get("user", ""), doing, f"{nodes}", f"{max(0, now - since) / 1000:,.0f} s"])
    return _table("Jobs", ["job", "user", "now", "nodes", "since"], found[::-1])


def _flows(rows: Any) -> Any:
    found = []
    live = [(n, row) for n, row in rows.get("flows", {}).items() if "ended" not in row and "class" in row]
    for name, row in sorted(live, key=lambda entry: -entry[1]["rate"]):
        done = f"{row['done'] / row['bytes']:.0%}" if row["bytes"] else f"{row['done'] / 1e6:,.0f} MB"
        way = f"{row['from']} > {row['to']}"
        asked = row.get("asked", "")
        found.append([row["class"], row.get("job", ""), way, done, _rate(row["rate"]), row.get("limit", ""), asked, name])  # fmt: skip
    columns = ["class", "job", "from > to", "done", "rate", "limited by", "asked for", "flow"]
    return _table("Flows", columns, found)


def _decisions(rows: Any) -> Any:
    found = []
    for row in sorted(rows.get("decisions", {}).values(), key=lambda row: -row["t"]):
        rules = row.get("rules")
        outcome = f"refused: {row['refused']}" if "refused" in row else ""
        if rules and not outcome:
            outcome = f"{rules['messages']} messages, {rules['ms']} ms"
        cause = row.get("cause", {"type": "earlier", "text": ""})
        found.append([f"{cause['type']} {cause['text']}", row["policy"], "; ".join(row["actions"]), outcome])
    return _table("Decisions", ["event", "policy", "actions", "rules"], found)


def _table(title: str, columns: list[str], found: list[list[str]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    from waystage.display import display

    more = f" ({len(found) - ROWS} more)" if len(found) > ROWS else ""
    made = Table(title=f"{title}{more}", title_justify="left", box=None, padding=(0, 2, 0, 0), expand=True)
    for name in columns:
        made.add_column(name, overflow="ellipsis", no_wrap=True)
    for cells in found[:ROWS]:
        # Names may hold markup or escape sequences: they are text, with control characters shown as such.
        made.add_row(*(Text(display(cell), style=CLASS_STYLES.get(cell, "")) for cell in cells))
    return made if found else None


def _rate(bps: float) -> str:
    from waystage.topology import format_rate

    return format_rate(bps) if bps >= 1 else "0"
