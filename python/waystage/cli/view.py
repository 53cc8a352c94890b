"""`waystage view`: a page that shows a site, or a recorded run.

Arrives: a folder of results, or the backplane's address; the options of the page.
Leaves: a server until Ctrl-C, and its address.
Must not know: what the page shows.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from waystage.cli.common import ExitCode, Output, UserError
from waystage.cli.connecting import configuration, connection_options
from waystage.cli.service import (
    log_format_option,
    ready_file_option,
    removed_at_exit,
    start_logging,
    tell_systemd,
    write_ready,
)
from waystage.cli.serving import page_options, serving_options
from waystage.outputs import remove_written


@click.command()
@click.argument("results", required=False, type=click.Path(file_okay=False, path_type=Path))
@page_options
@ready_file_option("File that gets the address with its token, mode 0600, when pages are answered")
@log_format_option
@connection_options
def command(
    results: Path | None,
    ready_file: Path | None,
    endpoint: str | None,
    config: Path | None,
    output: Output,
    **page: Any,
) -> None:
    """Show what happens on a site in a browser: links, jobs, flows, storage, events and decisions.

    Prints the address of the page, with a token; without the token it shows nothing. With RESULTS, the folder of
    `waystage run`, it shows that run with a time line. Ends with Ctrl-C.
    """
    from waystage.view.serving import Serving, ServingError

    start_logging(quiet=output.quiet)
    with _feed(results, endpoint, config, output) as (feed, fold, metrics):
        try:
            serving = Serving(feed, fold, serving_options(page), metrics=metrics)
        except ServingError as error:
            raise UserError(str(error), ExitCode.USAGE) from None

        def ready() -> None:
            collect_seldom()
            output.result({"url": serving.link, "pid": os.getpid()}, f"open {serving.link}")
            sys.stdout.flush()
            if ready_file is not None:
                remove_written(ready_file)  # its mode would be kept, and the token is secret
            write_ready(ready_file, f"{serving.link}\n", mode=0o600)
            tell_systemd("READY=1")

        with removed_at_exit(ready_file):
            serving.run(ready)
        tell_systemd("STOPPING=1")


def collect_seldom() -> None:
    """Almost nothing here is part of a cycle, and a full collection of the state would delay a frame by 40 ms."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


@contextlib.contextmanager
def _feed(
    results: Path | None, endpoint: str | None, config: Path | None, output: Output
) -> Iterator[tuple[Any, Callable[[], int], Any]]:
    """The feed, what folds events into it, and its metrics. Raises UserError."""
    from waystage.view.feed import About, Feed

    if results is not None:
        from waystage.experiment.results import ResultError
        from waystage.view.recorded import load

        if endpoint is not None or config is not None:
            output.note("a recorded run needs no controller: --endpoint and --config are not used")
        try:
            feed = load(results)
        except ResultError as error:
            raise UserError(str(error), ExitCode.BAD_INPUT) from None
        yield feed, lambda: 0, None
        return
    from waystage.backplane import BackplaneError
    from waystage.view.live import Live
    from waystage.view.openmetrics import metrics

    connection = configuration(endpoint, config)
    feed = Feed(About(title=", ".join(connection.connect), mode="live"))
    try:
        live = Live(connection, feed)
    except BackplaneError as error:
        raise UserError(str(error), ExitCode.FAILED) from None
    with contextlib.closing(live):
        yield feed, live.fold, metrics(feed, live)
