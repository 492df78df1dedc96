"""How the launchers of several nodes find each other, without a world."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from socket import create_connection, create_server

import pytest
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousParameters

from tests.e2e.processes import wait_until
from workers.rendezvous import NODES, LoopbackRendezvous, NodesMissing, NodesRendezvous

SECONDS = 20.0


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.fixture
def endpoint() -> str:
    with create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def node(rank: int, endpoint: str, nodes: int = 2, timeout: float = SECONDS, group: str = "group") -> NodesRendezvous:
    return NodesRendezvous(RendezvousParameters(NODES, endpoint, group, nodes, nodes, rank=rank, timeout=timeout))


def meet(pool: ThreadPoolExecutor, *nodes: NodesRendezvous) -> list[RendezvousInfo]:
    return [future.result(SECONDS) for future in [pool.submit(node.next_rendezvous) for node in nodes]]


def test_nodes_share_a_fresh_store_at_each_start(pool: ThreadPoolExecutor, endpoint: str) -> None:
    nodes = [node(rank, endpoint, nodes=3) for rank in (2, 0, 1)]
    first, again = meet(pool, *nodes), meet(pool, *nodes)
    for start in (first, again):
        assert [(info.rank, info.world_size) for info in start] == [(2, 3), (0, 3), (1, 3)]
        assert len({info.bootstrap_store_info.master_port for info in start}) == 1
        start[0].store.set("from", "node 2")
        assert start[1].store.get("from") == b"node 2"
    assert first[0].bootstrap_store_info.master_port != again[0].bootstrap_store_info.master_port
    again[0].store.set("only", "now")
    assert not first[1].store.check(["only"])


def test_a_replaced_launcher_makes_the_others_start_again(pool: ThreadPoolExecutor, endpoint: str) -> None:
    first, second = node(0, endpoint), node(1, endpoint)
    meet(pool, first, second)
    assert first.num_nodes_waiting() == second.num_nodes_waiting() == 0
    replaced: Future[RendezvousInfo] = pool.submit(node(1, endpoint).next_rendezvous)
    wait_until(lambda: first.num_nodes_waiting() == 1, SECONDS, lambda: "nobody waits")
    start = first.next_rendezvous()
    port = start.bootstrap_store_info.master_port
    assert replaced.result(SECONDS).bootstrap_store_info.master_port == port
    assert first.num_nodes_waiting() == 0


@pytest.mark.parametrize(
    ("present", "missing"), [([0], "node 1, 2, 3"), ([0, 2], "node 1, 3"), ([1, 2], "node 0")], ids=str
)
def test_missing_nodes_are_named(pool: ThreadPoolExecutor, endpoint: str, present: list[int], missing: str) -> None:
    # One after the other: a node that gives up is missing from then on.
    nodes = [node(rank, endpoint, 4, timeout=seconds) for seconds, rank in enumerate(present, start=1)]
    for seconds, future in enumerate([pool.submit(node.next_rendezvous) for node in nodes], start=1):
        with pytest.raises(NodesMissing, match=rf"after {seconds} s at {endpoint}: {missing}$"):
            future.result(SECONDS)


def test_a_node_that_gave_up_is_not_waited_for(pool: ThreadPoolExecutor, endpoint: str) -> None:
    first = pool.submit(node(0, endpoint, 3, timeout=4).next_rendezvous)
    with pytest.raises(NodesMissing, match=r"node 2$"):
        node(1, endpoint, 3, timeout=1).next_rendezvous()
    with pytest.raises(NodesMissing, match=r"node 1, 2$"):
        first.result(SECONDS)


def test_another_group_at_the_same_address_is_not_joined(endpoint: str, pool: ThreadPoolExecutor) -> None:
    first = pool.submit(node(0, endpoint, timeout=2).next_rendezvous)
    other = pool.submit(node(1, endpoint, timeout=1, group="other").next_rendezvous)
    for future in (first, other):
        with pytest.raises(NodesMissing):
            future.result(SECONDS)


def test_one_node_listens_on_loopback_only() -> None:
    info = LoopbackRendezvous(RendezvousParameters("any", "", "group", 1, 1)).next_rendezvous()
    assert (info.rank, info.world_size) == (0, 1)
    address = info.bootstrap_store_info
    with closing(create_connection((address.master_addr, address.master_port), timeout=SECONDS)):
        assert address.master_addr == "127.0.0.1"
    with pytest.raises(OSError, match="refused"):
        create_connection(("127.0.0.2", address.master_port), timeout=SECONDS)
