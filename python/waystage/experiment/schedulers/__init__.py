"""Which waiting jobs start, one file each.

Arrives: a `Moment`: the queue, the running jobs, the free nodes.
Leaves: jobs to start now, in order.
Must not know: which hosts they get, what they send, where time comes from.
"""
