"""Runs of a sweep, in processes: of this machine, or as batches of many nodes.

Arrives: a loaded sweep, combinations, a store.
Leaves: finished runs in the store; a run that loops or crashes is a failed one, and harms no other.
Must not know: how a run is made, how tasks reach nodes.
"""

from __future__ import annotations

import functools
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from waystage.nodes import Engine, Here, Task, marked, shared_folder
from waystage.nodes.processes import Died, Processes
from waystage.nodes.shared import needed
from waystage.simulate.combinations import Combination
from waystage.simulate.loading import Loaded
from waystage.simulate.one_run import simulate
from waystage.simulate.records import FinishedRun
from waystage.simulate.store import Store, read_run, write_run
from waystage.task import Progress

BATCHES_A_THREAD = 8
MOST_IN_BATCH = 256
"""Runs that a killed worker costs at most, those that it had stored excepted."""


def in_processes(
    loaded: Loaded,
    missing: Iterable[Combination],
    processes: int,
    done: Callable[[Combination, FinishedRun], None],
    advance: Callable[[Combination, float], None],
    *,
    path: Sequence[str] | None = None,
    look: Callable[[], None] | None = None,
) -> None:
    """Make runs in processes of this machine, which import algorithms by `path`."""
    limit_s = loaded.sweep.limit_s
    too_long = f"was ended after {limit_s:g} s: one of its algorithms may loop; if it does not, raise limit_s in the sweep"

    def finished(which: Combination, run: FinishedRun | Died) -> None:
        done(which, FinishedRun(status="failed", cause=run.cause) if isinstance(run, Died) else run)

    pool = Processes(simulate, loaded, processes, limit_s, too_long, path)
    pool.run(missing, finished, advance, look)


@dataclass(frozen=True)
class Work:
    """What all batches have in common: a file with the loaded sweep, where algorithms are."""

    loaded: str
    path: tuple[str, ...]
    processes: int | None


def by_nodes(
    engine: Engine,
    loaded: Loaded,
    folder: Path,
    missing: Sequence[Combination],
    processes: int | None,
    progress: Progress,
    *,
    directory: Path,
) -> None:
    """Make runs by the workers of `engine`, into the store in `folder`; `directory` takes the sweep. Raises NodesError.

    User-written algorithms must be at the same path on all nodes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with shared_folder(directory) as (lists, mark), marked(folder) as there:
        file = lists / "sweep"
        file.write_bytes(pickle.dumps(loaded))
        path = tuple(os.path.abspath(place) for place in sys.path)
        work = Work(str(file), path, processes)
        store = Store(Path(os.path.abspath(folder)), loaded)
        here = (mark, there, needed(Path.cwd()))
        size = min(MOST_IN_BATCH, max(1, len(missing) // (BATCHES_A_THREAD * max(1, engine.threads()))))
        batches = [missing[first : first + size] for first in range(0, len(missing), size)]
        tasks = [
            Task(
                f"runs from {batch[0].number}",
                make_batch,
                (work, [(which, str(store.path(which))) for which in batch]),
                weight=float(len(batch)),
            )
            for batch in batches
        ]
        engine.run(tasks, lambda task, made: None, progress, marks=here, total=float(len(missing)))


def make_batch(here: Here, work: Work, batch: Sequence[tuple[Combination, str]]) -> int:
    """In a worker: make the runs of a batch that have no file yet, each with its file; how many."""
    loaded = _loaded(work.loaded)
    paths = {which.number: Path(path) for which, path in batch}
    made = 0

    def done(which: Combination, run: FinishedRun) -> None:
        nonlocal made
        write_run(paths[which.number], run)
        made += 1

    # After a killed worker: what it had stored is kept.
    kept = {number: read_run(path) for number, path in paths.items()}
    missing = [which for which, _ in batch if (run := kept[which.number]) is None or run.status != "done"]
    in_processes(
        loaded,
        missing,
        here.threads(work.processes, os.cpu_count() or 1),
        done,
        lambda which, at_s: None,
        path=work.path,
        look=lambda: here.progress("simulating", made / max(len(missing), 1)),
    )
    return made


@functools.lru_cache(maxsize=1)
def _loaded(file: str) -> Loaded:
    loaded = pickle.loads(Path(file).read_bytes())
    assert isinstance(loaded, Loaded)
    return loaded
