"""The simulator of sweeps and contention studies: many jobs, many combinations of algorithms, no bytes moved.

Arrives: an experiment file of kind `sweep` or `contention`.
Leaves: for every combination and seed the load of every link and the times of every job; the contention of a study.
Must not know: policies, controllers, switches; `worlds.sim` simulates those.

docs/reference/simulator.md is the specification of sweeps, whose terms follow PFSim (Takahashi et al., 2018). Python
holds jobs, queue and algorithms; the compiled module does the work for each flow and link.
"""
