"""Which host each rank runs on, one file each.

Arrives: what the ranks send, the job's hosts, the cluster.
Leaves: a host for each rank, none with more ranks than slots.
Must not know: how hosts were chosen, how messages are routed.
"""
