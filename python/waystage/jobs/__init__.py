"""Jobs: notifications of the scheduler, and the job database.

Arrives: job and staging starts and ends, from a scheduler's hooks or the command line.
Leaves: events on the backplane; a database of jobs that survives restarts.
Must not know: policies, switches, paths.
"""
