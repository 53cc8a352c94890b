"""`waystage events`: follow events on the backplane.

Arrives: events on the backplane.
Leaves: one line an event, or with --json one object a line.
Must not know: what any event means.
"""

from __future__ import annotations

import json
import math
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from waystage.cli.common import ExitCode, Output, UserError
from waystage.cli.connecting import configuration, connection_options

_WAIT_SECONDS = 0.5
"""How often to check for an interrupt."""


@click.command()
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Only this type (repeatable).")
@click.option("--job", metavar="JOB_ID", help="Only events of this job.")
@click.option("--count", type=click.IntRange(min=1), help="Exit after N events.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Exit after this time; the exit status is 75 if --count events have not arrived.",
)
@click.option("--list", "list_types", is_flag=True, help="List the event types and their fields.")
@connection_options
def command(
    types: tuple[str, ...],
    job: str | None,
    count: int | None,
    timeout: float | None,
    list_types: bool,
    endpoint: str | None,
    config: Path | None,
    output: Output,
) -> None:
    """Follow events until Ctrl-C; with --json, one object a line."""
    from waystage.backplane import Backplane, BackplaneError
    from waystage.events import EventError

    if list_types:
        _list(output)
        return
    properties: dict[str, Any] = {"type": list(types) or None}
    if job is not None:
        properties["job_id"] = job
    try:
        with Backplane.open(configuration(endpoint, config)) as backplane:
            subscription = backplane.subscribe(properties)
            output.note(f"following {', '.join(types) or 'every event'}; end with Ctrl-C")
            end = math.inf if timeout is None else time.monotonic() + timeout
            shown = 0
            while (count is None or shown < count) and (left := end - time.monotonic()) > 0:
                item = subscription.get(min(left, _WAIT_SECONDS))
                if item is not None:
                    shown += 1
                    _show(item, output)
    except EventError as error:
        raise UserError(str(error), ExitCode.USAGE) from None
    except BackplaneError as error:
        raise UserError(str(error), ExitCode.FAILED) from None
    if count is not None and shown < count:
        raise UserError(f"{shown} of {count} events arrived within {timeout:g} s", ExitCode.TIMED_OUT)


def _show(item: Any, output: Output) -> None:
    import msgspec

    from waystage.backplane.keys import type_name
    from waystage.events import UnknownEvent
    from waystage.view.describe import flow_text

    body = item.event.body if isinstance(item.event, UnknownEvent) else msgspec.to_builtins(item.event)
    when = datetime.fromtimestamp(item.time_ns / 1e9).astimezone()
    head = {"type": type_name(item.event), "time": when.isoformat(), "source": item.source}
    text = flow_text(item.event) or json.dumps(body, ensure_ascii=True, default=str)
    short = text if len(text) <= 160 else f"{text[:157]}..."
    output.result(
        {**head, "seq": item.seq, "event_id": item.event_id, "body": body},
        f"{when:%H:%M:%S.%f} {head['type']} {short} ({item.source})",
    )


def _list(output: Output) -> None:
    from waystage.events import event_types

    found = {name: (cls.__doc__ or "").strip().splitlines() for name, cls in sorted(event_types().items())}
    lines = {name: doc[0] if doc and not doc[0].startswith(f"{name}(") else "" for name, doc in found.items()}
    output.result({"types": lines}, "\n".join(f"{name:18} {text}".rstrip() for name, text in lines.items()))
