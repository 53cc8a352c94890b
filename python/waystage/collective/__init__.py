"""The control plane's end of the I/O process of a node.

Arrives: a running aggregator process; settings from the flow agent of this node.
Leaves: what its applications and aggregators do, told to that agent; settings of the process.
Must not know: the backplane, policies, how bytes are moved.
"""

from waystage.collective.network import NetworkError, own_address
from waystage.collective.network import checked as checked_network
from waystage.collective.reporter import Aggregating, reported

__all__ = ["Aggregating", "NetworkError", "checked_network", "own_address", "reported"]
