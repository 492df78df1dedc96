"""The order of waiting requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pixelpod.v1 import images_pb2
from service.admission import AdmissionQueue, Ticket

PRIORITIES = st.sampled_from([images_pb2.PRIORITY_LOW, images_pb2.PRIORITY_NORMAL, images_pb2.PRIORITY_HIGH])
DEADLINES = st.integers(0, 5).map(float)


def ticket(priority: int, deadline: float) -> Ticket:
    return Ticket(images_pb2.ResolvedParameters(priority=priority), deadline, "tiny")


def test_by_priority_then_deadline_then_arrival() -> None:
    high, normal, low = images_pb2.PRIORITY_HIGH, images_pb2.PRIORITY_NORMAL, images_pb2.PRIORITY_LOW
    wanted = [ticket(high, 9.0), ticket(normal, 1.0), ticket(normal, 2.0), ticket(normal, 2.0), ticket(low, 0.5)]
    queue = AdmissionQueue(limit=5)
    for index in (4, 2, 0, 3, 1):
        assert not queue.full
        queue.add(wanted[index])
    assert list(queue) == wanted
    assert queue.full
    assert queue.last is wanted[4]
    assert queue.before(wanted[2]) == wanted[:2]


class Queue(RuleBasedStateMachine):
    """Against a list that is sorted anew at every look."""

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.model = AdmissionQueue(limit=3), []

    @rule(priority=PRIORITIES, deadline=DEADLINES)
    def add(self, priority: int, deadline: float) -> None:
        added = ticket(priority, deadline)
        self.queue.add(added)
        self.model.append(added)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.model:
            removed = data.draw(st.sampled_from(self.model))
            self.model.remove(removed)
            self.queue.remove(removed)
            self.queue.remove(removed)  # once more does nothing

    @invariant()
    def is_sorted_and_whole(self) -> None:
        wanted = sorted(self.model, key=lambda waiting: waiting.order)
        assert list(self.queue) == wanted
        assert len(self.queue) == len(wanted)
        assert self.queue.full == (len(wanted) >= 3)
        assert [self.queue.position(waiting) for waiting in wanted] == list(range(len(wanted)))


TestQueue = Queue.TestCase


@given(st.lists(st.tuples(PRIORITIES, DEADLINES), max_size=20), PRIORITIES, DEADLINES)
def test_a_newcomer_is_before_all_that_are_less_urgent(
    waiting: list[tuple[int, float]], priority: int, deadline: float
) -> None:
    queue = AdmissionQueue(limit=20)
    for each in waiting:
        queue.add(ticket(*each))
    newcomer = ticket(priority, deadline)
    assert newcomer not in queue
    assert queue.position(newcomer) == sum((-p, d) <= (-priority, deadline) for p, d in waiting)
