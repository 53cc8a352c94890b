"""Flows: engines report what they move to the agent of their node, and obey what they are asked for.

Arrives: running tasks; lines of engines; settings from the controller.
Leaves: events of flows; settings of running tasks.
Must not know: the backplane, policies.

`reported` is the engine's end; `agent.FlowAgent` the node's, which controllers and labs serve.
"""

from waystage.flows.reporter import (
    HERE,
    FlowDescription,
    FlowEnd,
    Report,
    copying_class,
    job_of,
    reported,
    socket_path,
    storage,
)

__all__ = [
    "HERE",
    "FlowDescription",
    "FlowEnd",
    "Report",
    "copying_class",
    "job_of",
    "reported",
    "socket_path",
    "storage",
]
