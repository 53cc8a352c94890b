"""Experiments of every kind: one file that says what runs, one folder of results.

Arrives: a YAML file; the records of a run from whichever world ran it.
Leaves: a validated experiment; its queue and jobs; `result.json`, timelines, summaries, figures and reports.
Must not know: how any world works, namespaces, switches, sockets.
"""
