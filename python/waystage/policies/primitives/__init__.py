"""Modules for MPI primitives: each decides which core switches the packets of one primitive use.

Arrives: a primitive's packets, events, the state.
Leaves: core switches. `base.py` has the interface, `null.py` is the annotated template.
Must not know: rules, tags, switches, worlds.
"""
