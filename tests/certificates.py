"""Certificates for tests, as files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    cert_file: Path
    key_file: Path

    def replace_by(self, other: Pair) -> None:
        """Put another pair in the place of this one, as a rotation does: file by file, each at once."""
        for old, new in ((self.cert_file, other.cert_file), (self.key_file, other.key_file)):
            waiting = old.with_suffix(".new")
            waiting.write_bytes(new.read_bytes())
            waiting.replace(old)


class Authority:
    """Issues certificates into a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._ca = trustme.CA(organization_name=name)
        self._folder = folder
        self._name = name
        self.file = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, identity: str = "127.0.0.1") -> Pair:
        """Return a new certificate for an address or a name, with its key."""
        certificate = self._ca.issue_cert(identity)
        pair = Pair(self._folder / f"{self._name}-{identity}.crt", self._folder / f"{self._name}-{identity}.key")
        certificate.private_key_pem.write_to_path(pair.key_file)
        pair.cert_file.write_bytes(b"".join(part.bytes() for part in certificate.cert_chain_pems))
        return pair
