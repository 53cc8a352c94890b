"""`waystage top`: the same facts in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness import command, ran, wait_until
from view_support import Site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    folder.chmod(0o700)
    found = Site(folder, view=False)
    yield found
    found.close()


def test_one_screen_shows_jobs_decisions_and_controllers(site: Site) -> None:
    site.notify("job-start", "17", "--nodes", "c1,c2")
    site.notify("staging-start", "17")

    def is_shown() -> bool:
        """One screen does not wait long for the controller's state."""
        screen = ran(command("top", "--once", "--endpoint", site.endpoint)).expect().out
        return "17" in screen and ("stages in, runs" in screen or "runs, stages in" in screen)

    def nodes() -> list[str] | None:
        frame = ran(command("top", "--json", "--endpoint", site.endpoint)).expect().json
        found: list[str] | None = frame["set"].get("jobs", {}).get("17", {}).get("nodes")
        return found

    wait_until(is_shown, what="the job on the screen")
    wait_until(lambda: nodes() == ["c1", "c2"], what="the nodes of the job")


def test_names_with_escape_sequences_or_markup_are_shown_as_text() -> None:
    from rich.console import Console

    from waystage import events
    from waystage.cli.top import _screen
    from waystage.events import Envelope
    from waystage.view.model import ViewModel

    model = ViewModel()
    nasty = "[bold]x[/bold] \x1b[31mred"
    model.apply(Envelope(event=events.JobStarted(job_id=nasty, nodes=()), event_id="1", time_ns=1))
    console = Console(width=120, record=True, force_terminal=True)
    with console.capture() as captured:
        console.print(_screen(model.whole(1)))
    assert "[bold]x[/bold]" in captured.get() and "\x1b[31m" not in captured.get()


def test_without_a_controller_it_says_so(tmp_path: str) -> None:
    found = ran(command("top", "--once", "--endpoint", f"unixsock-stream/{tmp_path}/none.sock"))
    assert found.code == 1 and "waystage: error:" in found.err
