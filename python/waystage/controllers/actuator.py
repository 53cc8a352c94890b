"""The interfaces of actuators, and of observers.

Arrives: actions, and the event that caused them; to observers, every event and the state after it.
Leaves: the effects of the action, and events about them.
Must not know: policies, the backplane.
"""

from __future__ import annotations

from typing import Protocol

from waystage.events import Action, Envelope
from waystage.state import State


class Actuator(Protocol):
    """`apply` is called in the controller's one engine thread and must not block for long."""

    def accepts(self, action: Action) -> bool: ...

    def apply(self, action: Action, cause: Envelope) -> None: ...


class Observer(Protocol):
    """Called in the controller's one engine thread; must neither block nor change the state."""

    def seen(self, item: Envelope, state: State) -> None:
        """`item` has been folded, and its actions carried out."""

    def tick(self, state: State) -> None:
        """About once a second, whether or not events come."""
