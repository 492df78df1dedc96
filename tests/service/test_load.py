"""What a frontend takes a group's load to be, between two statuses."""

from __future__ import annotations

import pytest

from pixelpod.v1 import group_pb2, images_pb2
from service.admission import Ticket
from service.load import GroupLoad
from tests.service.stub_group import measured, tiny_model

TWO_IMAGES = images_pb2.ResolvedParameters(width=64, height=64, num_images=2, steps=4)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def waiting(images: int, **changes: object) -> group_pb2.WaitingImages:
    return group_pb2.WaitingImages(**{"width": 64, "height": 64, "steps": 4, "images": images, **changes})


def status(
    backlog_seconds: float = 10.0, free_slots: int = 4, in_flight: int = 3, *waits: group_pb2.WaitingImages
) -> group_pb2.GroupStatus:
    return group_pb2.GroupStatus(
        group="a",
        epoch=7,
        model=tiny_model(),
        backlog_seconds=backlog_seconds,
        free_slots=free_slots,
        in_flight=in_flight,
        batch_seconds=measured(1.0, 0.25, 4),
        waiting_images=waits,
    )


def ticket(request_id: str = "r") -> Ticket:
    return Ticket(TWO_IMAGES, 0.0, "tiny", request_id=request_id)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def load(clock: Clock) -> GroupLoad:
    load = GroupLoad(clock)
    load.take(status())
    return load


def seen(load: GroupLoad) -> tuple[int, int, float]:
    return load.room, load.requests_ahead, load.backlog_seconds


def test_what_was_sent_counts_until_it_ends(load: GroupLoad) -> None:
    assert seen(load) == (4, 3, 10.0)
    sent = load.send(ticket())
    assert seen(load) == (2, 4, 11.0), "half of a batch of 2 s"
    load.forget(sent)
    load.forget(sent)
    assert seen(load) == (4, 3, 10.0)


def test_what_was_accepted_counts_until_the_next_status(load: GroupLoad) -> None:
    accepted, on_its_way = load.send(ticket("a")), load.send(ticket("b"))
    assert load.room == 0
    counting = status(free_slots=2, in_flight=4)
    counting.waiting.append("a")
    load.take(counting)
    assert seen(load) == (0, 5, 11.0), "the status counts one of them"
    load.forget(accepted)
    load.forget(on_its_way)
    assert seen(load) == (2, 4, 10.0)


def test_what_a_status_told_stays_counted_by_statuses(load: GroupLoad) -> None:
    sent, told = load.send(ticket("a")), status(free_slots=2, in_flight=4)
    told.computing.append("a")
    load.take(told)
    load.take(status(free_slots=4, in_flight=3))  # it ended there, and its answer is on the way
    assert seen(load) == (4, 3, 10.0)
    load.forget(sent)
    assert seen(load) == (4, 3, 10.0)


def test_what_computed_when_the_group_was_lost_is_known_afterwards(load: GroupLoad) -> None:
    computes, waits, unknown = load.send(ticket("a")), load.send(ticket("b")), load.send(ticket("c"))
    told = status()
    told.computing.append("a")
    told.waiting.append("b")
    load.take(told)
    load.lose()
    assert [sent.computes for sent in (computes, waits, unknown)] == [True, False, False]


def test_work_is_done_between_statuses(load: GroupLoad, clock: Clock) -> None:
    clock.now += 4
    assert load.backlog_seconds == 6
    clock.now += 100
    assert load.backlog_seconds == 0


def test_a_group_that_refused_has_no_room_until_its_next_status(load: GroupLoad) -> None:
    load.refuse()
    assert load.room == 0
    load.take(status())
    assert load.room == 4


@pytest.mark.parametrize(
    ("waits", "seconds"),
    [
        ([], 1.0),
        ([waiting(2)], 0.0),
        ([waiting(6)], 0.0),
        ([waiting(4)], 1.0),  # of a full batch
        ([waiting(3)], 1.0),  # one place for two images
        ([waiting(2, steps=5)], 1.0),
        ([waiting(2, width=96)], 1.0),
        ([waiting(2, guidance_scale=1.0)], 1.0),
        ([waiting(2, max_sequence_length=64)], 1.0),
        ([waiting(2, negative_prompt=True)], 1.0),
    ],
)
def test_places_left_in_a_batch_that_waits_cost_nothing(
    load: GroupLoad, waits: list[group_pb2.WaitingImages], seconds: float
) -> None:
    load.take(status(10.0, 4, 3, *waits))
    assert load.own_seconds(ticket()) == seconds


def test_what_was_sent_takes_and_opens_places(load: GroupLoad) -> None:
    first = load.send(ticket())
    assert load.own_seconds(ticket()) == 0.0
    load.send(ticket())
    assert load.own_seconds(ticket()) == 1.0
    load.forget(first)
    assert load.own_seconds(ticket()) == 0.0


def test_what_was_sent_to_a_free_device_does_not_wait_for_mates(load: GroupLoad) -> None:
    load.take(status(backlog_seconds=0.0, in_flight=0))
    load.send(ticket())
    assert load.own_seconds(ticket()) == 1.0


def test_times_are_those_of_the_last_status(load: GroupLoad) -> None:
    faster = status()
    assert load.own_seconds(ticket()) == 1.0
    del faster.batch_seconds[:]
    faster.batch_seconds.extend(measured(0.5, 0.125, 4))
    load.take(faster)
    assert load.own_seconds(ticket()) == 0.5


def test_nothing_counts_of_a_group_that_is_gone_but_its_name(load: GroupLoad) -> None:
    load.lose()
    assert seen(load) == (0, 0, 0)
    assert (load.status.group, load.status.epoch) == ("a", 0)
