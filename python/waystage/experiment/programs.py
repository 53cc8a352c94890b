"""The communicating programs that every world knows by name.

Arrives: nothing; a table.
Leaves: what each program's processes send, so that a simulator and an emulator mean the same.
Must not know: how a world runs them.
"""

from __future__ import annotations

PROGRAMS: dict[str, str] = {
    "alltoall": "every process sends `message` bytes to every other, `iterations` times (MPI_Alltoall)",
    "cg": "sums along rows and an exchange across of a grid of processes, `message` bytes each, as the NAS benchmark CG; "
    "a power of two of processes (MPI_Sendrecv)",
    "ring": "every process sends `message` bytes to its right neighbour, `iterations` times (MPI_Sendrecv)",
    "none": "no communication: processes only compute for `iterations` x `time_s`",
}
"""Name -> one line of help. The rank order is the order of a job's nodes."""
