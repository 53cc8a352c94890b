"""What all messages of the flow agent's socket have in common.

Arrives: nothing.
Leaves: their base class and the bounds of their fields.
Must not know: any one message.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, Meta(max_length=256)]

encoder = msgspec.json.Encoder()


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """One line; an unknown field is an error."""
