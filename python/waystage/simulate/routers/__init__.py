"""Routers: one path for each pair of hosts.

Arrives: options; the pairs of a job, their bytes and the loads of the links.
Leaves: a path for each pair, or the name of the compiled kernel that finds them.
Must not know: jobs, queues, time.

`kernels` has the shipped routers, which run in the compiled module. `first_path` is the annotated template for a router in
Python (docs/how-to/write-a-router.md).
"""
