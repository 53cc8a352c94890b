"""The communicating programs that every world knows by name.

Arrives: nothing; a table.
Leaves: what each program's processes send, so that a simulator and an emulator mean the same.
Must not know: how a world runs them.
"""

from __future__ import annotations

PROGRAMS: dict[str, str] = {
    "alltoall": "every process sends `message` bytes to every other, `iterations` times (MPI_Alltoall)",
    "allreduce": "all processes get the bitwise or of `message` bytes, `iterations` times (MPI_Allreduce)",
    "bcast-reduce": "`message` bytes from process 0 to all, 50 times, then as often from all to it, by turns, "
    "`iterations` in all (MPI_Bcast, MPI_Reduce)",
    "cg": "sums along rows and an exchange across of a grid of processes, `message` bytes each, as the NAS benchmark CG; "
    "a power of two of processes (MPI_Sendrecv)",
    "ring": "every process sends `message` bytes to its right neighbour, `iterations` times (MPI_Sendrecv)",
    "none": "no communication: processes only compute for `iterations` x `time_s`",
}
"""Name -> one line of help. The rank order is the order of a job's nodes."""

COLLECTIVES: dict[str, tuple[str, ...]] = {"allreduce": ("allreduce",), "bcast-reduce": ("bcast", "reduce")}
"""Programs that call collectives, and which by turns."""

TOGETHER = 50
"""Iterations of `bcast-reduce` from one primitive to the next."""
