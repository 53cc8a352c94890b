"""Controllers: where events become decisions, and the tiers through which they get there.

Arrives: events from the backplane.
Leaves: decisions to actuators; from the lower tiers, what matters to the tier above.
Must not know: OpenFlow, files of data, how a policy decides.
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
