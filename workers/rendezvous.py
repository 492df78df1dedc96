"""Rendezvous of a world that lives on one host: there is nothing to negotiate, and nothing leaves loopback.

torch's own handlers listen on every interface and exchange pickled state, which a world of one host has no use for.
"""

from __future__ import annotations

import socket

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch exports it without listing it
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

BACKEND = "pixelpod-loopback"
"""The name of this handler, for torch.distributed.launcher.api.LaunchConfig."""

_LOOPBACK = "127.0.0.1"


class LoopbackRendezvous(RendezvousHandler):
    """Gives each start of the world a store of its own, on a free port of loopback.

    A new store each time keeps a restarted world from reading the addresses of the ranks before it.
    """

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._run_id = parameters.run_id
        self._closed = False

    @property
    def use_agent_store(self) -> bool:
        """The ranks use the launcher's store; none of them listens for another one."""
        return True

    def get_backend(self) -> str:
        """Return the handler's name."""
        return BACKEND

    def get_run_id(self) -> str:
        """Return the name of the world."""
        return self._run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """Return a fresh store, and this host as the first of one."""
        listener = socket.create_server((_LOOPBACK, 0))
        port = listener.getsockname()[1]
        store = TCPStore(_LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
        return RendezvousInfo(store, rank=0, world_size=1, bootstrap_store_info=RendezvousStoreInfo(_LOOPBACK, port))

    def num_nodes_waiting(self) -> int:
        """Return 0: no other host joins."""
        return 0

    def is_closed(self) -> bool:
        """Tell whether the world was ended for good."""
        return self._closed

    def set_closed(self) -> None:
        """End the world for good."""
        self._closed = True

    def shutdown(self) -> bool:
        """End the world for good; tell that nothing stood against it."""
        self._closed = True
        return True


def register() -> None:
    """Make the handler known to torchrun under `BACKEND`."""
    rendezvous_handler_registry.register(BACKEND, LoopbackRendezvous)
