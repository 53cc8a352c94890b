"""The common name of a certificate, to which access rules refer.

Arrives: files in PEM: an authority, a certificate, its key.
Leaves: the certificate's common name.
Must not know: Zenoh, rules.

The standard library parses certificates only of a peer, so an in-memory handshake with ourselves reads it. The
handshake also verifies that certificate, key and CA match.
"""

from __future__ import annotations

import ssl
from typing import Any


def common_name(ca: str, certificate: str, key: str) -> str:
    """The first common name of the certificate. Raises ssl.SSLError, OSError, or ValueError where it has none."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(ca)
    server.load_cert_chain(certificate, key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.load_cert_chain(certificate, key)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours, theirs = client.wrap_bio(down, up), server.wrap_bio(up, down, server_side=True)
    done: set[ssl.SSLObject] = set()
    # TLS 1.3 takes three steps and 1.2 takes four.
    for side in (ours, theirs) * 4:
        try:
            if side not in done:
                side.do_handshake()
                done.add(side)
        except ssl.SSLWantReadError:
            continue
    found: dict[str, Any] = dict(theirs.getpeercert() or {})
    names = [value for part in found.get("subject", ()) for name, value in part if name == "commonName"]
    if not names:
        raise ValueError("it has no common name")
    return str(names[0])
