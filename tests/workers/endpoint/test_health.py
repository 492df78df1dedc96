"""What the endpoint tells of itself: health, probes, liveness and status."""

from __future__ import annotations

import time
from collections.abc import Callable

import grpc
import pytest

from pixelpod.server.probes import LIVE
from pixelpod.v1 import group_pb2, group_pb2_grpc
from tests.e2e.processes import NOT_SERVING, SERVING, free_address, health_of, wait_until
from tests.workers.endpoint.served import WAIT_SECONDS, Served
from workers.endpoint import SERVICE
from workers.liveness import RankState, Sign


def test_health_and_status_follow_the_state_at_once(serve: Callable[..., Served]) -> None:
    served = serve(ready=False)
    statuses = served.watch()
    assert next(statuses).state == group_pb2.GROUP_STATE_LOADING
    assert served.health() == served.health(SERVICE) == NOT_SERVING
    for state, health in (
        (group_pb2.GROUP_STATE_WARMING, NOT_SERVING),
        (group_pb2.GROUP_STATE_READY, SERVING),
        (group_pb2.GROUP_STATE_DRAINING, NOT_SERVING),
    ):
        changed = time.monotonic()
        served.status.enter(state, "because")
        assert next(status for status in statuses if status.state == state).reason == "because"
        assert time.monotonic() - changed < 0.5
        assert served.health() == served.health(SERVICE) == health


def test_probes_are_answered_without_the_group_itself(serve: Callable[..., Served]) -> None:
    address = free_address()
    serve(probes=address)

    def all_serve() -> bool:
        return all(health_of(address, service) == SERVING for service in ("", SERVICE, LIVE))

    wait_until(all_serve, WAIT_SECONDS, lambda: "not serving")
    with grpc.insecure_channel(address) as channel:
        with pytest.raises(grpc.RpcError) as raised:
            next(group_pb2_grpc.WorkerGroupStub(channel).WatchStatus(group_pb2.WatchStatusRequest(), timeout=5))
        assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_liveness_follows_the_ranks_not_the_state(serve: Callable[..., Served]) -> None:
    served = serve(ready=False, liveness_timeout_seconds=0.5)
    wait_until(lambda: served.health(LIVE) == SERVING, WAIT_SECONDS, lambda: "not live while loading")
    served.liveness.write(0, Sign(1, 1, RankState.SERVING))
    served.status.enter(group_pb2.GROUP_STATE_DRAINING)
    wait_until(lambda: served.health() == NOT_SERVING, WAIT_SECONDS, lambda: "ready while draining")
    wait_until(lambda: served.health(LIVE) == NOT_SERVING, WAIT_SECONDS, lambda: "live, though its rank is silent")
    served.liveness.write(0, Sign(1, 2, RankState.SERVING))
    wait_until(lambda: served.health(LIVE) == SERVING, WAIT_SECONDS, lambda: "not live again")


def test_status_comes_at_least_once_a_second(serve: Callable[..., Served]) -> None:
    statuses = serve().watch()
    next(statuses)
    started = time.monotonic()
    next(statuses)
    next(statuses)
    assert time.monotonic() - started < 3
