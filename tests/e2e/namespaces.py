"""Hosts for tests: network namespaces with addresses and names of their own, on one wire. Nothing of them is left."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.processes import start, wait_until

DEVICE = "eth0"
LIFETIME_SECONDS = 300
"""A host ends by itself after this long, whatever becomes of the test."""


@dataclass(frozen=True)
class Host:
    """A network, mount and UTS namespace, held by a process that sleeps in it."""

    pid: int
    name: str
    address: str

    def command(self, *argv: str) -> tuple[str, ...]:
        """Return what runs `argv` on this host, as the same process."""
        return ("nsenter", "--target", str(self.pid), "--net", "--mount", "--uts", "--", *argv)

    def run(self, *argv: str) -> str:
        """Run a program here to its end, and return what it wrote."""
        return _run(*self.command(*argv))


def missing_for_hosts() -> str:
    """Return why hosts can't be made here; empty if they can."""
    for program in ("unshare", "nsenter", "ip", "mount"):
        if shutil.which(program) is None:
            return f"there is no {program}"
    result = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "true"], capture_output=True, text=True, timeout=10, check=False
    )
    return result.stderr.strip()


@contextmanager
def two_hosts(names: Sequence[Sequence[str]], folder: Path) -> Iterator[tuple[Host, Host]]:
    """Make two hosts that reach each other, and end them with the context.

    Args:
        names: The names of each, the first of which is its host name.
        folder: For the file with all names, which is each host's /etc/hosts.
    """
    addresses = ("10.77.0.1", "10.77.0.2")  # of this wire only
    hosts_file = folder / "hosts"
    lines = [f"{address} {' '.join(known)}" for address, known in zip(addresses, names, strict=True)]
    hosts_file.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
    with ExitStack() as stack:
        first, second = (Host(_hold(stack), known[0], address) for address, known in zip(addresses, names, strict=True))
        wire = ("ip", "link", "add", DEVICE, "netns", str(first.pid), "type", "veth", "peer", "name", DEVICE)
        _run(*wire, "netns", str(second.pid))
        for host in (first, second):
            host.run("ip", "address", "add", f"{host.address}/24", "dev", DEVICE)
            host.run("ip", "link", "set", DEVICE, "up")
            host.run("ip", "link", "set", "lo", "up")
            host.run("hostname", host.name)
            host.run("mount", "--bind", str(hosts_file), "/etc/hosts")
        yield first, second


def _hold(stack: ExitStack) -> int:
    """Make namespaces that live with a process, and return its id."""
    holder = stack.enter_context(start(["unshare", "--net", "--mount", "--uts", "sleep", str(LIFETIME_SECONDS)]))
    # The last namespace that unshare enters, before it becomes the program.
    wait_until(lambda: Path(f"/proc/{holder.pid}/comm").read_text() == "sleep\n", 10, lambda: holder.log)
    assert os.readlink(f"/proc/{holder.pid}/ns/net") != os.readlink("/proc/self/ns/net")
    return holder.pid


def _run(*argv: str) -> str:
    result = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 0, f"{' '.join(argv)}: {result.stderr}"
    return result.stdout
