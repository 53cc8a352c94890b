"""The lab: a cluster in network namespaces, with Open vSwitch, Open MPI and real file transfers, on one machine.

Arrives: a topology, or an experiment that names one.
Leaves: hosts, links and switches that behave like a cluster's; results; afterwards, nothing.
Must not know: how policies decide, how rules are planned; the controller is a process beside the switches.

`lab.py` brings a cluster up and down, `runner.py` runs an experiment in one.
"""
