"""Rendezvous of the launchers of a world: who is there is known beforehand, so there is little to negotiate.

torch's own handlers listen on every interface and exchange pickled state, which such a world has no use for.
"""

from __future__ import annotations

import logging
import socket
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import DistNetworkError, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # not listed
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

ONE_NODE = "pixelpod-loopback"
"""The handler of a world that lives on one host, for torch.distributed.launcher.api.LaunchConfig."""

NODES = "pixelpod-nodes"
"""The handler of a world on several hosts. It needs the endpoint, and in the configuration `rank` and `timeout`."""

_LOOPBACK = "127.0.0.1"
_LOOK_SECONDS = 0.1
_ANSWER_SECONDS = 10.0
"""Longest time for an answer of a host that is there."""

logger = logging.getLogger(__name__)


class NodesMissing(Exception):
    """Launchers of other nodes did not come in time. The message names their numbers."""


class _Rendezvous(RendezvousHandler):
    """Gives each start of the world a store of its own, on a free port.

    A new store each time keeps a restarted world from reading the addresses of the ranks before it.
    """

    backend: str

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._run_id = parameters.run_id
        self._closed = False

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Return a fresh store, this host's number, and how many hosts there are."""

    @property
    def use_agent_store(self) -> bool:
        """The ranks use the launcher's store; none of them listens for another one."""
        return True

    def get_backend(self) -> str:
        """Return the handler's name."""
        return self.backend

    def get_run_id(self) -> str:
        """Return the name of the world."""
        return self._run_id

    def num_nodes_waiting(self) -> int:
        """Return how many hosts want to start the world again; a world that runs is then stopped for them."""
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


class LoopbackRendezvous(_Rendezvous):
    """Of one host: nothing leaves loopback."""

    backend = ONE_NODE

    def next_rendezvous(self) -> RendezvousInfo:
        """Return a fresh store, and this host as the first of one."""
        store = _serve_store(_LOOPBACK, 0)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(_LOOPBACK, store.port))


class NodesRendezvous(_Rendezvous):
    """Of several hosts, each with a fixed number. They meet at a store that node 0 serves at the endpoint.

    For each start of the world, each other node leaves a new token there under its number. When all have, node 0 opens
    the store of this start and answers each token with its port. So no node joins a start that is over: neither one
    that was late, nor one whose launcher was replaced.
    """

    backend = NODES

    def __init__(self, parameters: RendezvousParameters) -> None:
        super().__init__(parameters)
        self._endpoint = parameters.endpoint
        host, _, port = parameters.endpoint.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._nodes, self._rank = parameters.max_nodes, int(parameters.config["rank"])
        self._timeout_seconds = float(parameters.config["timeout"])
        self._meeting: Store | None = None

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until all nodes want to start the world, and return the store of this start.

        Raises:
            NodesMissing: after the timeout.
        """
        logger.info("waiting for the other nodes", extra={"rendezvous": self._endpoint, "nodes": self._nodes})
        until = time.monotonic() + self._timeout_seconds
        store = self._gather(until) if self._rank == 0 else self._join(until)
        return RendezvousInfo(store, self._rank, self._nodes, RendezvousStoreInfo(self._host, store.port))

    def num_nodes_waiting(self) -> int:
        """Return how many nodes left a token; only node 0 looks, and the ranks of the others miss its ranks."""
        return self._nodes - 1 - len(self._absent(self._meeting)) if self._rank == 0 and self._meeting else 0

    def _gather(self, until: float) -> TCPStore:
        """As node 0: collect a token from each of the others, and answer them."""
        if self._meeting is None:
            self._meeting = PrefixStore(self._run_id, _serve_store(self._host, self._port))
        meeting = self._meeting
        if not _holds(lambda: not self._absent(meeting), until):
            raise self._missing(self._absent(meeting))
        store = _serve_store(self._host, 0)
        for node in range(1, self._nodes):
            token = meeting.get(_place(node)).decode()
            meeting.delete_key(_place(node))
            meeting.set(token, str(store.port))
        return store

    def _join(self, until: float) -> TCPStore:
        """As another node: leave a token, and wait for its answer."""
        while True:
            if not _holds(lambda: _listens(self._host, self._port), until):
                raise self._missing([0])
            try:
                meeting = PrefixStore(self._run_id, _connect(self._host, self._port))
                return _connect(self._host, self._ask(meeting, until))
            except DistNetworkError as error:
                # The launcher of node 0 ended. The next one has another store, without the token.
                logger.warning("node 0 went away, waiting for it again: %s", str(error).splitlines()[0])

    def _ask(self, meeting: Store, until: float) -> int:
        token = uuid.uuid4().hex
        meeting.set(_place(self._rank), token)
        try:
            if not _holds(lambda: bool(meeting.check([token])), until):
                raise self._missing(self._absent(meeting) or [0])
            return int(meeting.get(token))
        finally:
            # A node that gives up is not to be waited for.
            meeting.delete_key(_place(self._rank))

    def _absent(self, meeting: Store) -> list[int]:
        """Return the numbers of the nodes that left no token."""
        return [node for node in range(1, self._nodes) if not meeting.check([_place(node)])]

    def _missing(self, nodes: list[int]) -> NodesMissing:
        numbers = ", ".join(map(str, nodes))
        return NodesMissing(f"missing after {self._timeout_seconds:g} s at {self._endpoint}: node {numbers}")


def register() -> None:
    """Make the handlers known to torchrun."""
    for handler in (LoopbackRendezvous, NodesRendezvous):
        rendezvous_handler_registry.register(handler.backend, handler)


def _place(node: int) -> str:
    return f"node-{node}"


def _serve_store(host: str, port: int) -> TCPStore:
    """Open a store that listens on one address only; port 0 is any free one."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    listener = socket.create_server((host, port), family=family)
    port = listener.getsockname()[1]
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def _connect(host: str, port: int) -> TCPStore:
    timeout = timedelta(seconds=_ANSWER_SECONDS)
    return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)


def _listens(host: str, port: int) -> bool:
    """Tell whether a server is there. A store would wait for it within native code, where no signal ends it."""
    try:
        socket.create_connection((host, port), timeout=_ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


def _holds(condition: Callable[[], bool], until: float) -> bool:
    """Wait for a condition at most until this monotonic time, and tell whether it holds."""
    while not condition():
        if time.monotonic() >= until:
            return False
        time.sleep(_LOOK_SECONDS)
    return True
