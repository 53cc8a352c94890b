"""An authority of certificates in a folder, for tests of mutual TLS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Issued:
    """PEM files."""

    certificate: str
    key: str


class Authority:
    """Signs certificates; everything is in PEM files of one folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._authority = trustme.CA()
        self.ca = str(folder / "ca.pem")
        self._authority.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, *hosts: str) -> Issued:
        """A certificate for hosts, by default for the name itself."""
        made = self._authority.issue_cert(*(hosts or (name,)), common_name=name)
        key, certificate = self._folder / f"{name}.key", self._folder / f"{name}.pem"
        made.private_key_pem.write_to_path(str(key))
        certificate.write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
        return Issued(str(certificate), str(key))
