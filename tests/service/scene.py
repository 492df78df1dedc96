"""A dispatcher between groups and requests that do what a test says."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from pixelpod.server.errors import RequestError
from pixelpod.v1 import images_pb2
from service.admission import Ticket
from service.availability import Availability
from service.dispatcher import Dispatcher
from service.metrics import FrontendMetrics
from tests.service.fake_groups import FakeGroup

IDS = itertools.count()
LOW, NORMAL, HIGH = images_pb2.PRIORITY_LOW, images_pb2.PRIORITY_NORMAL, images_pb2.PRIORITY_HIGH


def ticket(seconds: float = 60.0, priority: int = NORMAL, num_images: int = 1) -> Ticket:
    """Return the ticket of a request for a small image, which has so many seconds left."""
    parameters = images_pb2.ResolvedParameters(
        width=64, height=64, num_images=num_images, steps=4, priority=images_pb2.Priority.ValueType(priority)
    )
    return Ticket(parameters, time.monotonic() + seconds, "tiny", request_id=str(next(IDS)))


class Scene:
    """A dispatcher over fake groups, and the requests that wait in it."""

    def __init__(self, *groups: FakeGroup, queue_limit: int = 8, no_group_seconds: float = 5.0) -> None:
        self.groups = list(groups)
        self.metrics = FrontendMetrics()
        self.dispatcher = Dispatcher(self.groups, self.metrics, queue_limit, no_group_seconds)
        self.placed: list[Ticket] = []
        """In the order of their placing."""
        self.tasks: dict[Ticket, asyncio.Task[None]] = {}

    async def arrive(self, *tickets: Ticket) -> None:
        """Let requests arrive one after the other; each keeps the place that it gets until it is told to leave."""
        for each in tickets:
            self.tasks[each] = asyncio.create_task(self._hold(each))
            await self.settle()

    async def leave(self, *tickets: Ticket) -> None:
        """Let requests end: those that wait, and those that have a place, which they give back."""
        for each in tickets:
            self.tasks[each].cancel()
        await asyncio.gather(*(self.tasks.pop(each) for each in tickets), return_exceptions=True)
        await self.settle()

    async def tell(self, group: FakeGroup, **status: object) -> None:
        """Let a group send a status."""
        group.tell(**status)
        self.dispatcher.group_changed(group)
        await self.settle()

    async def become(self, group: FakeGroup, availability: Availability) -> None:
        """Let a group come, or go."""
        group.availability = availability
        self.dispatcher.groups_changed()
        await self.settle()

    async def failure(self, each: Ticket) -> RequestError:
        """Return what ends a request that was not placed."""
        with pytest.raises(RequestError) as raised:
            await asyncio.wait_for(self.tasks.pop(each), 10)
        return raised.value

    @property
    def unplaced(self) -> list[Ticket]:
        """Those that wait, by what was placed."""
        return [each for each in self.tasks if each not in self.placed]

    @property
    def waiting(self) -> float | None:
        """Requests that wait, by the gauge; None where none has been counted yet."""
        return self.metrics.registry.get_sample_value("pixelpod_frontend_waiting", {"model": "tiny"})

    async def _hold(self, each: Ticket) -> None:
        self.dispatcher.expect(each)
        with self.dispatcher.queued(each):
            await self.dispatcher.place(each)
            self.placed.append(each)
            await asyncio.Event().wait()

    @staticmethod
    async def settle() -> None:
        """Let everything happen that can."""
        for _ in range(5):
            await asyncio.sleep(0)

    async def close(self) -> None:
        """End all requests; nothing may be left."""
        await self.leave(*list(self.tasks))
        assert self.waiting in (0, None)
