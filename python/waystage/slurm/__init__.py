"""Waystage in Slurm: hooks that stage data in and out and report jobs, and their installation.

Arrives: Slurm's configuration; calls of its hooks; its list of jobs.
Leaves: files in Slurm's configuration folder; job events; requests to the staging service.
Must not know: how data moves, policies, paths of the interconnect.
"""
