"""Experiments: one file that says what runs, and the results of running it.

Arrives: a YAML file; records of a run from whichever world ran it.
Leaves: a validated `Experiment`; the jobs of each set; `result.json`, timelines and a report.
Must not know: how any world works, namespaces, switches, sockets.
"""
