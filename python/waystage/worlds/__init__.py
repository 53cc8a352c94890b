"""Worlds: places in which one experiment file runs. Here: the lab, an emulated cluster on one machine.

Arrives: a validated experiment.
Leaves: results in one schema, whichever world ran it.
Must not know: each other; `base.py` is what they have in common.
"""
