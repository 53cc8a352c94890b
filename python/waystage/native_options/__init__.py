"""Options of the data plane's tasks, by name: what `waystage._native` reads, once, when a task starts.

Arrives: values that a caller has checked.
Leaves: frozen option objects with defaults, a module for each kind of task: a command defines only those it uses.
Must not know: how the data plane carries them out.

Rates are bytes per second, sizes bytes, times seconds; None is no limit unless a field says otherwise. Invalid values
raise ValueError where the task starts.
"""
