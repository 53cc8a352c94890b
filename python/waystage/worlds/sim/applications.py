"""What simulated applications are asked to keep to, and their waiting for grants.

Arrives: settings, a moment after they were decided; the time.
Leaves: settings at control points; the call of what waits.
Must not know: flows, policies, what an application does.

As the I/O process of a node: a grant is for one operation, and it and the waiting end at `until_ns`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from waystage.events import IoSettings


class _Application(msgspec.Struct):
    settings: IoSettings = IoSettings()
    used: int = -1
    """The version of the grant that an operation has used up."""
    waiting: Callable[[], None] | None = None
    running: Callable[[], None] | None = None
    report: Callable[[], None] | None = None


class Applications:
    """`now_ns` is the time of events; `later` calls after a delay in s."""

    def __init__(self, now_ns: Callable[[], int], later: Callable[[float, Callable[[], None]], None]) -> None:
        self._now_ns, self._later = now_ns, later
        self._of: dict[str, _Application] = {}

    def settings(self, app: str) -> IoSettings:
        return self._of[app].settings if app in self._of else IoSettings()

    def wait(self, app: str, granted: Callable[[], None]) -> None:
        """Call `granted` once the application's next operation may go on, at once where it need not wait."""
        known = self._of.setdefault(app, _Application())
        if self._may_go_on(known):
            granted()
        else:
            known.waiting = granted
            self._watch(app)

    def runs(self, app: str, reweigh: Callable[[], None], report: Callable[[], None]) -> None:
        """The operation has begun; `reweigh` is called where its weight may have changed, `report` once a second."""
        known = self._of.setdefault(app, _Application())
        known.running, known.report = reweigh, report

    def tick(self) -> None:
        """A second has passed."""
        for known in list(self._of.values()):
            if known.report is not None:
                known.report()

    def ended(self, app: str) -> None:
        """The operation has ended, and with it its grant."""
        known = self._of[app]
        known.used, known.running, known.report = known.settings.version, None, None

    def adjust(self, app: str, settings: IoSettings) -> None:
        """Keep to these from now on, unless they are older."""
        known = self._of.setdefault(app, _Application())
        if settings.version <= known.settings.version:
            return
        known.settings = settings
        if known.running is not None and settings.weight > 0:
            known.running()
        self._ask(app)

    def forget(self, app: str) -> None:
        self._of.pop(app, None)

    # -- inside ----------------------------------------------------------------------------------------

    def _may_go_on(self, known: _Application) -> bool:
        wanted = known.settings
        if not wanted.until_ns or wanted.until_ns <= self._now_ns():
            return True
        return wanted.weight > 0 and known.used != wanted.version

    def _ask(self, app: str) -> None:
        known = self._of.get(app)
        if known is None or known.waiting is None:
            return
        if self._may_go_on(known):
            granted, known.waiting = known.waiting, None
            granted()
        else:
            self._watch(app)

    def _watch(self, app: str) -> None:
        """Ask again when the waiting ends."""
        left_ns = self._of[app].settings.until_ns - self._now_ns()
        self._later(max(left_ns, 0) / 1e9 + 1e-6, lambda: self._ask(app))
