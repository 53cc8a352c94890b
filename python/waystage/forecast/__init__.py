"""What flows will do next: shares of links, storage targets and wide-area paths over the next minutes.

Arrives: the state, or a curve of a file system. Leaves: rates, times, numbers of loaders.
Must not know: policies, worlds, clocks, sockets. `waystage._native.FlowClock` does the arithmetic.
"""
