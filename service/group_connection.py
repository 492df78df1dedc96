"""A frontend's connection to one group: its last status, and the requests that this frontend runs on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import grpc

from pixelpod.server.errors import PermissionDenied, Unauthenticated, Unavailable, from_call
from pixelpod.v1 import group_pb2, group_pb2_grpc, images_pb2
from service.absence import Absence
from service.availability import Availability, availability_of
from service.group_access import PLAIN_TEXT, GroupAccess
from service.load import GroupLoad
from service.patience import within

logger = logging.getLogger(__name__)

CONTRACT_VERSION = 3
"""The version of group.proto that this frontend speaks."""

FIRST_PAUSE_SECONDS = 0.05
LAST_PAUSE_SECONDS = 1.0
"""Pauses between attempts to watch a group, doubling from the first to the last."""

Call: TypeAlias = (
    grpc.aio.UnaryUnaryCall[group_pb2.ExecuteRequest, bytes] | grpc.aio.UnaryStreamCall[group_pb2.ExecuteRequest, bytes]
)

Incarnation: TypeAlias = tuple[str, int]
"""A group's name and epoch: one life of one group, whatever the address."""

_REFUSALS = (Unauthenticated, PermissionDenied)

_BROKEN = frozenset({grpc.StatusCode.UNAVAILABLE.name, grpc.StatusCode.CANCELLED.name})
"""gRPC's own reasons, which no group said: the connection broke, or the call arrived just as the group's server stopped
(https://github.com/grpc/grpc/issues/41785)."""

REASON_LOST = "GROUP_LOST"
RETRY_LOST_SECONDS = 1.0
"""A request whose group was lost may find another, or the same one restarted, after this long."""

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),  # groups are in the same deployment; image bytes must not detour
    # An image comes as one piece: nobody waits for the window to grow, and few frames are taken apart.
    ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
    ("grpc.http2.max_frame_size", 4 * 1024 * 1024),
    # The group is told how large an answer may be.
    ("grpc.max_receive_message_length", -1),
)


class GroupConnection:
    """Watches the group at one address and runs requests on it.

    Args:
        address: Where the group's endpoint listens, host:port.
        silent_seconds: Without a status for this long the group is gone.
        on_change: Called after the group's availability, model or incarnation changed.
        on_status: Called with this connection after every status, and after a change.
        access: How the group is spoken to.
    """

    def __init__(
        self,
        address: str,
        silent_seconds: float,
        on_change: Callable[[], None],
        on_status: Callable[[GroupConnection], None],
        access: GroupAccess = PLAIN_TEXT,
    ) -> None:
        self.address = address
        self.availability = Availability.GONE
        self.model: images_pb2.Model | None = None
        """What the group serves; kept when it is gone, since it is expected back."""
        self.load = GroupLoad()
        self.absence = Absence()
        self._told: Incarnation | None = None
        """The incarnation at the last change."""
        self._silent_seconds = silent_seconds
        self._on_change = on_change
        self._on_status = on_status
        self._calls: set[Call] = set()
        self._unused = asyncio.Event()
        """Set while there are no calls."""
        self._unused.set()
        self._cut: dict[Call, Unavailable] = {}
        """Calls that we cancelled although their callers still wait, and what these are told."""
        self._access = access
        self._connect()

    def _connect(self) -> None:
        """Open a channel, with the credentials of now."""
        self._credentials = self._access.credentials
        self._channel = self._access.open_channel(self.address, CHANNEL_OPTIONS)
        self._watch_status = group_pb2_grpc.WorkerGroupStub(self._channel).WatchStatus
        # Answers and events come as they are on the wire: images pass through without being parsed.
        serialize = group_pb2.ExecuteRequest.SerializeToString
        self._execute: grpc.aio.UnaryUnaryMultiCallable[group_pb2.ExecuteRequest, bytes] = self._channel.unary_unary(
            "/pixelpod.v1.WorkerGroup/Execute", request_serializer=serialize
        )
        self._execute_stream: grpc.aio.UnaryStreamMultiCallable[group_pb2.ExecuteRequest, bytes] = (
            self._channel.unary_stream("/pixelpod.v1.WorkerGroup/ExecuteStream", request_serializer=serialize)
        )

    @property
    def name(self) -> str:
        """The group's name, or its address where it did not tell yet."""
        return self.load.status.group or self.address

    @property
    def epoch(self) -> int:
        """The group's incarnation; 0 while it is gone."""
        return self.load.status.epoch

    @property
    def revision(self) -> str:
        """Which revision of its model the group serves; empty where it did not tell yet."""
        return self.model.revision if self.model is not None else ""

    @property
    def incarnation(self) -> Incarnation | None:
        """Which life of which group the connection reaches; None while it reaches none."""
        return (self.load.status.group, self.load.status.epoch) if self.load.status.epoch else None

    @property
    def contract_version(self) -> int:
        """The version of the contract that the group speaks; 0 while it is gone."""
        return self.load.status.contract_version

    @property
    def ready(self) -> bool:
        """Whether the group takes requests."""
        return self.availability is Availability.READY

    def serves(self, model: str) -> bool:
        """Return whether the group takes requests for `model`."""
        return self.ready and self.model is not None and self.model.name == model

    async def watch(self) -> None:
        """Follow the group's status until cancelled; connect again, with pauses, whenever the stream ends."""
        pause_seconds = FIRST_PAUSE_SECONDS
        while True:
            async for status in self._statuses():
                self._take(status)
                pause_seconds = FIRST_PAUSE_SECONDS
            self._lose()
            if self._access.credentials is not self._credentials and not self._calls:
                old_channel = self._channel
                self._connect()
                await old_channel.close()
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, LAST_PAUSE_SECONDS)

    def cut_requests(self, message: str, reason: str) -> None:
        """End every request in flight on the group with `Unavailable`."""
        for call in self._calls:
            self._cut[call] = Unavailable(message, reason=reason, retry_after_seconds=RETRY_LOST_SECONDS)
            call.cancel()

    async def unused(self) -> None:
        """Wait until no request runs on the group."""
        while self._calls:
            await self._unused.wait()

    async def close(self) -> None:
        """Give up the connection."""
        await self._channel.close()

    async def execute(self, request: group_pb2.ExecuteRequest, timeout_seconds: float) -> bytes:
        """Compute `request` on the group and return the whole answer: an encoded GenerateResponse.

        Raises:
            RequestError: as the group ended the request; `Unavailable` if the group was lost.
        """
        call = self._execute(request, timeout=timeout_seconds, metadata=self._access.metadata)
        with self._in_flight(call):
            return await call

    async def execute_stream(
        self, request: group_pb2.ExecuteRequest, timeout_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """Compute `request` on the group and yield its events as they come: encoded ExecuteEvents.

        Closing the iterator cancels the computation. Errors as of `execute`.
        """
        call = self._execute_stream(request, timeout=timeout_seconds, metadata=self._access.metadata)
        with self._in_flight(call):
            async for message in call:
                yield message

    @contextmanager
    def _in_flight(self, call: Call) -> Iterator[None]:
        """Count a call while it runs, and raise what ended it."""
        self._calls.add(call)
        self._unused.clear()
        try:
            yield
        except grpc.aio.AioRpcError as error:
            ended = from_call(error)
            # What a group thinks of this frontend's own token is not the caller's fault.
            raise (self.lost() if ended.reason in _BROKEN or isinstance(ended, _REFUSALS) else ended) from error
        except asyncio.CancelledError:
            if call in self._cut:
                raise self._cut[call] from None
            raise  # the caller left
        finally:
            self._calls.discard(call)
            if not self._calls:
                self._unused.set()
            self._cut.pop(call, None)
            call.cancel()

    def lost(self) -> Unavailable:
        """Return the error of a request that the group did not bring to its end."""
        return Unavailable(
            f"group {self.name} was lost during the request; try again",
            reason=REASON_LOST,
            retry_after_seconds=RETRY_LOST_SECONDS,
        )

    async def _statuses(self) -> AsyncIterator[group_pb2.GroupStatus]:
        """Yield the group's statuses until its stream ends, breaks or is silent for too long."""
        call = self._watch_status(group_pb2.WatchStatusRequest(), wait_for_ready=True, metadata=self._access.metadata)
        try:
            while True:
                status = await within(self._silent_seconds, call.read())
                if not isinstance(status, group_pb2.GroupStatus):  # the end of the stream
                    return
                yield status
        except TimeoutError:
            # Its connection may well stand, so nothing else would end the requests in flight on it.
            self.cut_requests(f"group {self.name} fell silent during the request; try again", REASON_LOST)
        except grpc.aio.AioRpcError as error:
            level = logging.WARNING if isinstance(from_call(error), _REFUSALS) else logging.DEBUG
            logger.log(level, "status stream broke", extra={"group_address": self.address, "code": error.code().name})
        finally:
            call.cancel()

    def _take(self, status: group_pb2.GroupStatus) -> None:
        self.load.take(status)
        if status.contract_version == CONTRACT_VERSION:
            self._change(availability_of(status.state), status.model)
        else:
            self._change(Availability.INCOMPATIBLE, None)
        self._on_status(self)

    def _lose(self) -> None:
        self.load.lose()
        self._change(Availability.GONE, self.model)

    def _change(self, availability: Availability, model: images_pb2.Model | None) -> None:
        told, self._told = self._told, self.incarnation
        if (availability, model, self._told) == (self.availability, self.model, told):
            return
        if availability is not self.availability:
            usable = availability is not Availability.INCOMPATIBLE
            logger.log(
                logging.INFO if usable else logging.WARNING,
                "group changed" if usable else "group speaks another version of the contract and is not used",
                extra={
                    "group_address": self.address,
                    "group": self.load.status.group,
                    "state": str(availability),
                    "reason": self.load.status.reason,
                    "contract_version": self.load.status.contract_version,
                    "frontend_contract_version": CONTRACT_VERSION,
                },
            )
        self.availability, self.model = availability, model
        self.absence.note(ready=self.ready)
        self._on_change()
