"""Policies: pure functions of an event and the state, one file each.

Arrives: `(event, state)`. Leaves: actions. Must not know: sockets, clocks, switches, worlds.
"""
