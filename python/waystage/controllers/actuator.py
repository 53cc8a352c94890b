"""The interface of actuators.

Arrives: actions, and the event that caused them.
Leaves: the effects of the action, and events about them.
Must not know: policies, the backplane.
"""

from __future__ import annotations

from typing import Protocol

from waystage.events import Action, Envelope


class Actuator(Protocol):
    """`apply` is called in the controller's one engine thread and must not block for long."""

    def accepts(self, action: Action) -> bool: ...

    def apply(self, action: Action, cause: Envelope) -> None: ...
