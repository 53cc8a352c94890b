"""The live view: what happens on a site, in a browser and in a terminal.

Arrives: events of a backplane, of a run in progress, or of a recorded run.
Leaves: a page with its deltas, metrics for Prometheus, a trace for Perfetto.
Must not know: policies, actuators; it publishes nothing.

`model.py` folds envelopes into rows and gives frames: a whole one, and deltas of the rows that have changed.
`history.py` keeps frames to scroll back. Both are pure. `server.py` is the thin HTTP part.
"""
