"""A run that is shown while it goes on.

Arrives: envelopes of a run's controller, each set as it begins.
Leaves: a feed.
Must not know: worlds, HTTP.
"""

from __future__ import annotations

from waystage.events import Envelope
from waystage.view.feed import About, Feed
from waystage.view.model import ViewModel


class Running:
    """A watcher of a run (`waystage.worlds.recorder.Watcher`). `simulated`: times are from the start of the run."""

    def __init__(self, title: str, *, simulated: bool) -> None:
        self.feed = Feed(About(title=title, mode="run", epoch=not simulated), model=ViewModel(sets=True))
        self._set = ""

    def begin(self, policy: str, set_index: int) -> None:
        """What follows belongs to this set."""
        self._set = f"{policy}, set {set_index + 1}"

    def __call__(self, item: Envelope) -> None:
        if self._set:
            self.feed.mark(item.time_ns // 1_000_000, self._set)
            self._set = ""
        self.feed.apply((item,))

    def fold(self) -> int:
        """The time of the run, ns."""
        return self.feed.model.time_ns
