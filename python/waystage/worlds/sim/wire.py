"""What a payload is on the wire: headers and acknowledgements, computed from the MTU.

Arrives: bytes that programs send, in messages.
Leaves: bytes that switches count, in both directions.
Must not know: who sends, over which links.

Counted as switches count: from the Ethernet header on, without preamble, checksum and gap. A full segment is one MTU:
Ethernet 14 (IEEE 802.3), IPv4 20 (RFC 791), TCP 20 and its timestamps 12 (RFC 9293, RFC 7323). At MTU 9000 that
is 66 bytes for 8,948, so 99.27 % of a link carries payload. A receiver acknowledges every second full segment (RFC 9293
section 3.8.6.3), with a packet that is headers alone. The tag of 4 bytes between switches, 0.04 %, is left out.

An MPI message has a header: 16 bytes by which Open MPI's `ob1` matches it and 16 of its TCP transport.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

HEADERS = 14 + 20 + 20 + 12
"""Ethernet, IPv4, TCP, TCP timestamps."""

SEGMENTS_PER_ACK = 2

MPI_HEAD = 16 + 16
"""`mca_pml_ob1_match_hdr_t` and `mca_btl_tcp_hdr_t` of Open MPI 4.1. Large messages have some more, 0.05 % of theirs."""

Amount = TypeVar("Amount", float, "NDArray[np.float64]")


class Wire:
    """Sizes on links of one MTU. `messages` are sent by themselves: each ends a segment."""

    def __init__(self, mtu: int) -> None:
        self.segment = mtu - (HEADERS - 14)

    @property
    def payload_share(self) -> float:
        """How much of a link's capacity carries payload in a long transfer."""
        return self.segment / (self.segment + HEADERS)

    def data(self, payload: Amount, messages: Amount) -> Amount:
        """Bytes on the way there."""
        return payload + HEADERS * self._segments(payload, messages)

    def acknowledgements(self, payload: Amount, messages: Amount) -> Amount:
        """Bytes on the way back."""
        return HEADERS * self._segments(payload, messages) / SEGMENTS_PER_ACK

    def _segments(self, payload: Amount, messages: Amount) -> Amount:
        """As if all messages were equally long; one has one segment at least."""
        if not isinstance(payload, np.ndarray):
            return max(messages, 1) * math.ceil(payload / (self.segment * max(messages, 1)))
        count = np.maximum(messages, 1)
        found: Amount = count * np.ceil(payload / (self.segment * count))
        return found
