"""How changes fared on one switch.

Arrives: nothing; this is the word between what installs changes and what decides about them.
Leaves: `Outcome`.
Must not know: OpenFlow, plans.
"""

from __future__ import annotations

import msgspec


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """`error` None: in force.

    `unknown`: some changes may be in force, what the switch holds must be read again. `own` is False where
    the switch itself objected to nothing, and was left alone because another did. `lasting`: it was
    asked and said no; else it was away or silent.
    """

    error: str | None = None
    unknown: bool = False
    own: bool = True
    lasting: bool = False
