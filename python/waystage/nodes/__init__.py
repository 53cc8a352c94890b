"""Work on many nodes, by Dask's scheduler and workers: coarse tasks, run again where a worker is killed.

Arrives: a scheduler's address, or a number of Slurm jobs; tasks as functions and small arguments.
Leaves: each task's result, once; one error where a node cannot take part or a task fails everywhere.
Must not know: what tasks do. Bulk data never passes through the scheduler: tasks read and write shared storage.

A task may run twice, also at the same time: a worker that the scheduler has lost may still be alive. So tasks are
idempotent: what they write is complete or absent, under names that no other task gives. See
docs/decisions/0048-many-nodes.md.
"""

from waystage.nodes.engine import Engine, Held, Task
from waystage.nodes.errors import Cancelled, NodesError, NodesMissing, NodesRefused, TaskKilled
from waystage.nodes.joining import Where, join
from waystage.nodes.remote import Here
from waystage.nodes.shared import Mark, marked, shared_folder

__all__ = [
    "Cancelled",
    "Engine",
    "Held",
    "Here",
    "Mark",
    "NodesError",
    "NodesMissing",
    "NodesRefused",
    "Task",
    "TaskKilled",
    "Where",
    "join",
    "marked",
    "shared_folder",
]
