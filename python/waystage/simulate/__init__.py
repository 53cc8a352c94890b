"""The simulator of sweeps: many jobs, many combinations of algorithms, no bytes moved.

Arrives: a sweep file (topology, jobs, lists of algorithms, seeds).
Leaves: for every combination and seed the load of every link and the times of every job; tables, plots, a report.
Must not know: policies, controllers, switches; those are simulated by `worlds.sim`, from experiment files.

Sweep files, their keys and the names of their algorithms follow PFSim (Takahashi et al., 2018), so that its files
run unchanged. docs/reference/simulator.md is the specification. Python holds jobs, queue and algorithms; whatever is
done for each flow or link is done by the compiled module.
"""
