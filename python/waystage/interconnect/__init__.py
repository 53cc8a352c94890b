"""The interconnect: topology files, discovery, the rule planner, OpenFlow.

Arrives: GraphML, path plans, what switches report and hold.
Leaves: flow rules and groups on switches, in an order that loses no packet; link use by port and class.
Must not know: the reasons of a policy.

`planner.py` is the interface of the pure part, `controller.py` of the part that talks to switches.
"""
