"""Which path each pair of hosts takes, one file each; all are kernels of the compiled module.

Arrives: options.
Leaves: the kernel's name and options.
Must not know: hosts, links, loads: the kernel sees them.

A router of your own has `paths`, as `simulate.algorithms.Router` says.
"""
