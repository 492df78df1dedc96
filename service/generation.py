"""The data plane: takes a request from validation through the queue and groups to its end. Knows no gRPC server."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

from pixelpod.server.answer import timings_of
from pixelpod.server.callers import current_caller
from pixelpod.server.errors import DeadlinePassed
from pixelpod.server.events import Events
from pixelpod.v1 import group_pb2, images_pb2
from service.admission import Ticket
from service.attempts import Attempts
from service.caller_limits import CallerLimits
from service.dispatcher import Dispatcher
from service.forecast import Forecast
from service.groups import Groups
from service.metrics import FrontendMetrics
from service.records import RequestRecord
from service.revisions import choose_revision
from service.router import ready_groups
from service.validation import resolve_request, resolve_request_id

LEAST_SECONDS = 0.01
"""No image is made in less: a request with less time left is not sent to a group."""


@dataclass(frozen=True)
class _Admitted:
    """A request that may wait for a group."""

    ticket: Ticket
    expected: Forecast
    execution: group_pb2.ExecuteRequest
    """What groups are sent."""


class Generation:
    """Answers requests with what groups compute.

    Args:
        groups: Where models are found.
        dispatcher: Where requests wait for room on a group.
        metrics: Told of what is sent again.
        revision_weights: By model and revision: which share of requests is for it.
        limits: What callers may ask for.
    """

    def __init__(
        self,
        groups: Groups,
        dispatcher: Dispatcher,
        metrics: FrontendMetrics,
        revision_weights: Mapping[str, Mapping[str, float]],
        limits: CallerLimits,
    ) -> None:
        self._groups = groups
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._revision_weights = revision_weights
        self._limits = limits

    async def answer(self, request: images_pb2.GenerateRequest, record: RequestRecord, limit_bytes: int) -> bytes:
        """Return the answer to `request`, an encoded GenerateResponse of at most `limit_bytes`, as a group made it.

        Raises:
            RequestError: that ends the request.
        """
        admitted = self._admit(request, record)
        with self._queued(admitted, record) as attempts:
            answer = await attempts.answer(limit_bytes)
            record.queue_seconds = timings_of(answer).queue_seconds
            return answer

    async def events(self, request: images_pb2.GenerateRequest, record: RequestRecord) -> Events:
        """Yield the events that answer `request`: accepted, then what groups send, then done.

        The request waits for a group only once the event after `accepted` is asked for. Closing the iterator stops the
        computation.

        Raises:
            RequestError: that ends the request.
        """
        admitted = self._admit(request, record)
        accepted = images_pb2.Accepted(
            request_id=record.request_id,
            position=self._dispatcher.ahead(admitted.ticket),
            predicted_seconds=admitted.expected.finish_seconds,
        )
        yield images_pb2.GenerateEvent(accepted=accepted)
        with self._queued(admitted, record) as attempts:
            async with aclosing(attempts.events()) as events:
                async for event in events:
                    if isinstance(event, images_pb2.GenerateEvent) and event.HasField("done"):
                        record.queue_seconds = event.done.timings.queue_seconds
                    yield event

    def _admit(self, request: images_pb2.GenerateRequest, record: RequestRecord) -> _Admitted:
        """Decide whether a request may wait for a group.

        `record` sets its time and takes down what becomes known. The current caller must be within its limits.

        Raises:
            RequestError: if it may not.
        """
        record.request_id = resolve_request_id(request)
        model = self._groups.find_model(request.model, current_caller())
        record.model = model.name
        revision = self._choose_revision(model.name)
        resolved = resolve_request(request, self._published(model, revision))
        if record.remaining_seconds < LEAST_SECONDS:
            raise record.out_of_time()
        deadline = time.monotonic() + record.remaining_seconds
        ticket = Ticket(resolved.parameters, deadline, model.name, revision, record.request_id)
        execution = group_pb2.ExecuteRequest(
            request_id=record.request_id,
            model=model.name,
            prompt=request.prompt,
            parameters=resolved.parameters,
            warnings=resolved.warnings,
        )
        expected = self._dispatcher.expect(ticket)
        self._limits.take_images(current_caller(), resolved.parameters.num_images)
        return _Admitted(ticket, expected, execution)

    @contextmanager
    def _queued(self, admitted: _Admitted, record: RequestRecord) -> Iterator[Attempts]:
        """Let an admitted request into its model's queue, for as long as this lasts.

        Raises:
            RequestError: if the queue filled up since, or what is done within raised it.
        """
        with self._dispatcher.queued(admitted.ticket):
            try:
                yield Attempts(admitted.execution, admitted.ticket, self._dispatcher, self._metrics)
            except DeadlinePassed as error:
                raise (error if record.remaining_seconds > 0 else record.out_of_time()) from error

    def _choose_revision(self, model: str) -> str | None:
        ready = {group.revision for group in ready_groups(self._groups, model)}
        return choose_revision(self._revision_weights.get(model, {}), ready)

    def _published(self, model: images_pb2.Model, revision: str | None) -> images_pb2.Model:
        """Return what holds for a request: what a group of the revision publishes, or else all groups together."""
        if revision is None:
            return model
        of_revision = (group.model for group in self._groups if group.serves(model.name) and group.revision == revision)
        return next((published for published in of_revision if published is not None), model)
