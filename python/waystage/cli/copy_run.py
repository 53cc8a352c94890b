"""What the copies of one `waystage copy` have in common: progress, statistics, the log, the schedule of the rate.

Arrives: copies and what follows them, in progress.
Leaves: progress on the terminal, lines of statistics and of the log, until each has ended.
Must not know: sources, destinations, options of copies.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from waystage.cli.common import Output
from waystage.cli.copy_dry import WORDS
from waystage.cli.copy_report import ItemLog, Statistics, size_text
from waystage.task import Progress, follow
from waystage.wan.rates import Limiter, Schedule

if TYPE_CHECKING:
    from waystage._native import RemoteCopy, SourceRemove, TreeCopy, TreeDelete


@dataclass(frozen=True)
class Run:
    """What all copies of one command have in common."""

    output: Output
    dry_run: str | None
    began: float
    statistics: Statistics | None
    schedule: Schedule
    log: ItemLog

    @property
    def word(self) -> str:
        return WORDS.get(self.dry_run or "", "copied")

    def follow(self, copying: TreeCopy | RemoteCopy, progress: Progress) -> None:
        """Wait for a copy, with progress, statistics, the log and the schedule of its rate."""
        limiter = Limiter(self.schedule, copying.limit) if self.schedule.changes else None
        if limiter is not None:
            limiter.look()

        def report(counts: dict[str, int]) -> None:
            if limiter is not None:
                limiter.look()
            if self.statistics is not None:
                self.statistics.look(copying)
            self.log.take(copying)
            done = counts["files"] + counts["same"] + counts["mended"]
            rate = counts["bytes"] / max(time.monotonic() - self.began, 1e-9)
            moved = counts["bytes"] + counts["resumed_bytes"]
            # Until the walk has ended, it has found only a part of the total.
            share = max(moved / max(counts["found_bytes"], 1), done / max(counts["found"], 1))
            of_all = f"{size_text(moved)} of {size_text(counts['found_bytes'])}"
            text = f"{self.word} {done:,} of {counts['found']:,} entries, {of_all}, {size_text(rate)}/s"
            progress(text, min(share, 0.99))

        follow(copying, report)
        self.log.take(copying)
        if self.statistics is not None:
            self.statistics.look(copying, last=True)

    def follow_after(self, task: TreeDelete | SourceRemove, doing: str) -> None:
        """Wait for what follows a copy, with progress and the log."""
        with self.output.progress() as progress:

            def report(counts: dict[str, int]) -> None:
                self.log.take(task)
                progress(f"{doing}: {counts['deleted'] + counts['removed']:,} entries", 0.99)

            follow(task, report)
            self.log.take(task)


def left_undone(run: Run, counts: dict[str, int], what: str) -> bool:
    """Whether a copy with these counts is not complete; says that so nothing was done to what it left."""
    undone = counts["errors"] + counts["changed"] + counts["vanished"] > 0
    if undone:
        run.output.note(f"note: the copy is not complete, so nothing was {what}")
    return undone
