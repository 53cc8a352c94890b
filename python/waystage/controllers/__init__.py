"""Controllers: decisions on events, and the tiers that relay events.

Arrives: events from the backplane.
Leaves: decisions to actuators; from lower tiers, events to the tier above.
Must not know: OpenFlow, data files, the logic of policies.
"""

from waystage.controllers.actuator import Actuator
from waystage.controllers.engine import PolicyEngine
from waystage.controllers.global_controller import ControllerStats, GlobalController
from waystage.controllers.journal import Journal, JournalError
from waystage.controllers.relay import RelayConfig, RelayController

__all__ = [
    "Actuator",
    "ControllerStats",
    "GlobalController",
    "Journal",
    "JournalError",
    "PolicyEngine",
    "RelayConfig",
    "RelayController",
]
