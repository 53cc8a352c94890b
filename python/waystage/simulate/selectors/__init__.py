"""Which hosts a job gets, one file each.

Arrives: how many ranks, the free hosts, the cluster.
Leaves: hosts, in order.
Must not know: what the job sends, what waits behind it.
"""
