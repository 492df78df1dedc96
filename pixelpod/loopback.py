"""Which addresses only this machine can reach. What goes there needs no encryption."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(address: str) -> bool:
    """Tell whether `address`, "host:port", is on loopback. Of names only localhost is: others may point anywhere."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
