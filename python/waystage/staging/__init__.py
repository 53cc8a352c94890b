"""Staging: requests to move a job's data, kept in a queue and carried out by engines with the user's rights.

Arrives: submissions from local processes, whose user the kernel names; a state directory.
Leaves: complete copies; one sentence for each request that has none; staging events.
Must not know: how bytes are moved, policies, paths of the network.
"""
