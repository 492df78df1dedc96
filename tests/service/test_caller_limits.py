"""Callers are held to their limits, and nothing is kept of those that ask no more."""

from __future__ import annotations

import pytest

from pixelpod.server.callers import ANONYMOUS, Caller
from pixelpod.server.errors import InvalidRequest, Overloaded
from service.caller_limits import CallerLimits


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.1

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limits(clock: Clock) -> CallerLimits:
    return CallerLimits(clock)


def _caller(name: str = "shop", **limits: int) -> Caller:
    return Caller(name=name, token_sha256=[], models="all", **limits)


def _kept(limits: CallerLimits) -> int:
    return sum(len(kept) for kept in vars(limits).values() if isinstance(kept, dict))


def test_requests_at_once_are_limited_by_caller(limits: CallerLimits) -> None:
    shop, lab = _caller(max_concurrent_requests=2), _caller("lab", max_concurrent_requests=1)
    running = [shop, shop, lab, ANONYMOUS]
    for caller in running:
        limits.enter(caller)
    with pytest.raises(Overloaded, match="shop has 2 requests in flight and may have 2") as refused:
        limits.enter(shop)
    assert (refused.value.reason, refused.value.retry_after_seconds) == ("CALLER_BUSY", 1.0)
    for caller in running:
        limits.leave(caller)
    assert _kept(limits) == 0
    limits.enter(shop)


@pytest.mark.parametrize("limit", [1, 7, 60, 1000])
def test_a_minutes_images_may_come_at_once_and_then_one_by_one(limits: CallerLimits, clock: Clock, limit: int) -> None:
    shop = _caller(images_per_minute=limit)
    for _ in range(limit):
        limits.take_images(shop, 1)
    with pytest.raises(Overloaded, match=f"may ask for {limit} images a minute") as refused:
        limits.take_images(shop, 1)
    assert refused.value.reason == "CALLER_RATE"
    assert refused.value.retry_after_seconds == pytest.approx(60 / limit)
    clock.now += refused.value.retry_after_seconds
    limits.take_images(shop, 1)


def test_what_is_refused_takes_nothing_and_others_are_not_held_up(limits: CallerLimits, clock: Clock) -> None:
    shop = _caller(images_per_minute=10)
    limits.take_images(shop, 8)
    for _ in range(5):
        with pytest.raises(Overloaded) as refused:
            limits.take_images(shop, 4)
        assert refused.value.retry_after_seconds == pytest.approx(12)
    limits.take_images(shop, 2)
    limits.take_images(_caller("lab", images_per_minute=10), 10)
    limits.take_images(ANONYMOUS, 1000)
    clock.now += 60
    limits.take_images(shop, 10)


def test_more_than_a_minutes_images_at_once_never_succeed(limits: CallerLimits) -> None:
    with pytest.raises(InvalidRequest, match="more than the 3 images") as refused:
        limits.take_images(_caller(images_per_minute=3), 4)
    assert refused.value.field == "num_images"


def test_nothing_is_kept_of_callers_that_are_whole_again(limits: CallerLimits, clock: Clock) -> None:
    for number in range(100):
        limits.take_images(_caller(f"caller-{number}", images_per_minute=1), 1)
    clock.now += 61
    limits.take_images(_caller(images_per_minute=1), 1)
    assert _kept(limits) == 1
