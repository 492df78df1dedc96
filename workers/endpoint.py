"""The group's endpoint: rank 0's gRPC server, on a thread of its own (law 2).

It answers from state that is already there. Requests go into the queue, and their events come back through
`AcceptedRequest`; nothing here waits for the device.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
import time
from concurrent.futures import Future
from functools import partial

import grpc
import uvloop
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import aio as health

from pixelpod.server.access import Access
from pixelpod.server.connections import Connections
from pixelpod.server.descriptors import connections_within_limit
from pixelpod.server.errors import RequestError, Unavailable
from pixelpod.server.probes import LIVE, ProbeServer, serving
from pixelpod.server.reader_interceptor import ReaderInterceptor
from pixelpod.server.readers import Readers
from pixelpod.server.transport import SERVER_OPTIONS, listen
from pixelpod.v1 import group_pb2
from workers.metrics import GroupMetrics
from workers.model_file import ModelFile
from workers.queue import RequestQueue
from workers.servicer import SERVICE, WorkerGroup
from workers.settings import GroupSettings
from workers.status import StatusBoard
from workers.vitals import Vitals

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 0.01
"""Between two statuses that tell of changes. A request makes several, and a status costs about as much as a chunk.

So long a frontend may not know whose computing began: what breaks the group sooner is not taken for the cause.
"""
FAREWELL_SECONDS = 1.0
"""How long callers have to read the status that ends their calls."""
VITALS_SECONDS = 0.5
"""Between two looks at the ranks' signs of life."""


class Endpoint:
    """Serves WorkerGroup and grpc.health.v1 from `start` until `close`.

    Args:
        settings: The address, and the limits of a request.
        model: Which requests are valid.
        queue: Where accepted requests go.
        status: What health and WatchStatus tell.
        metrics: Where ended requests are counted.
        vitals: What the liveness probe tells.

    Raises:
        FileRefused: if a file of certificates or tokens can't be used.
    """

    def __init__(
        self,
        settings: GroupSettings,
        model: ModelFile,
        queue: RequestQueue,
        status: StatusBoard,
        metrics: GroupMetrics,
        vitals: Vitals,
    ) -> None:
        self._settings = settings
        self._access = Access(settings, limits_apply=False)
        self._metrics = metrics
        self._connections = Connections(
            connections_within_limit(settings.connection_limits), partial(metrics.connection_closed, "calls")
        )
        metrics.connections.set_function(lambda: self._connections.open)
        self._queue = queue
        self._status = status
        self._vitals = vitals
        self._readers = Readers(settings.reader_stall_seconds, on_end=metrics.reader_ended)
        self._servicer = WorkerGroup(model, queue, status, metrics, settings.max_request_seconds)
        self._health = health.HealthServicer()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()), name="endpoint", daemon=True)
        self._listening: Future[int] = Future()
        self._drain_until = 0.0
        self._wakeup, self._signals = socket.socketpair()
        self._wakeup.setblocking(False)
        self._signals.setblocking(False)

    def start(self) -> int:
        """Serve; return the port.

        Raises:
            AddressInUse: if the address can't be had.
            PlainTextRefused: if others could listen in.
        """
        self._thread.start()
        return self._listening.result()

    def drain_on(self, *signals: signal.Signals) -> None:
        """From now on drain on each of these signals, also while the main thread is deep in a long computation.

        Python runs signal handlers on the main thread between two of its instructions, which may be minutes away. So
        the handler does nothing: what counts is the byte that the interpreter writes to the endpoint's loop at once.
        """
        for number in signals:
            signal.signal(number, lambda number, frame: None)
        signal.set_wakeup_fd(self._wakeup.fileno())

    def close(self, error: RequestError | None = None) -> None:
        """Stop serving; closing again does nothing.

        Args:
            error: Ends all requests in flight at once; None after a drain, to wait for them until its time is over.
        """
        if not self._thread.is_alive():
            return
        self._queue.close()
        if error is not None:
            self._queue.end_all(error)
            self._queue.wait_until_empty(FAREWELL_SECONDS)
        else:
            drain_seconds_left = max(0.0, self._drain_until - time.monotonic())
            self._queue.wait_until_empty(drain_seconds_left + FAREWELL_SECONDS)
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed, self._closing = asyncio.Event(), asyncio.Event()
        try:
            server, port = await self._start_server()
            probe_server = await self._start_probes()
        except Exception as error:  # noqa: BLE001 -- it belongs to the thread that called start
            self._listening.set_exception(error)
            return
        self._status.on_change(self._wake)
        self._queue.on_change(self._wake)
        self._loop.add_reader(self._signals, self._drain)
        work = (
            self._announce(),
            self._tell_vitals(),
            self._access.follow(),
            self._connections.watch(port),
            self._readers.watch(),
        )
        tasks = [asyncio.create_task(each) for each in work]
        self._listening.set_result(port)
        await self._closing.wait()
        for task in tasks:
            task.cancel()
        await self._servicer.end_watches()
        await server.stop(FAREWELL_SECONDS)
        if probe_server is not None:
            await probe_server.stop()

    async def _start_server(self) -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server(
            options=[*SERVER_OPTIONS, *self._connections.options],
            interceptors=(
                ReaderInterceptor(self._readers),
                *self._access.interceptors,
                *self._connections.interceptors,
            ),
        )
        self._servicer.add_to(server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        await self._tell_health()
        port = listen(server, self._settings.listen, self._access.credentials, insecure=self._settings.insecure)
        await server.start()
        return server, port

    async def _start_probes(self) -> ProbeServer | None:
        if self._settings.probes is None:
            return None
        probe_server = ProbeServer(
            self._settings.probes, self._health, partial(self._metrics.connection_closed, "probes")
        )
        await probe_server.start()
        return probe_server

    def _drain(self) -> None:
        """Refuse new work; what was accepted has `drain_seconds` to finish."""
        self._signals.recv(4096)
        if self._queue.closed:
            return
        logger.info("draining")
        self._status.enter(group_pb2.GROUP_STATE_DRAINING, "the group is stopping")
        self._queue.close()
        self._readers.hurry()
        self._drain_until = time.monotonic() + self._settings.drain_seconds
        error = Unavailable("the group stopped before this request was done", reason="GROUP_DRAINING")
        self._loop.call_later(self._settings.drain_seconds, self._queue.end_all, error)

    def _wake(self) -> None:
        """Have a change announced. Any thread calls this."""
        if not self._changed.is_set():  # else the next announcement tells this one too
            self._loop.call_soon_threadsafe(self._changed.set)

    async def _announce(self) -> None:
        """Pass every change on to health and to the status streams: at once, but never more often than need be."""
        told = None
        while True:
            await self._changed.wait()
            self._changed.clear()
            if told != self._status.state:
                told = self._status.state
                await self._tell_health()
            await self._servicer.wake_watches()
            await asyncio.sleep(PAUSE_SECONDS)

    async def _tell_health(self) -> None:
        for service in ("", SERVICE):
            await self._health.set(service, serving(self._status.state == group_pb2.GROUP_STATE_READY))

    async def _tell_vitals(self) -> None:
        while True:
            await self._health.set(LIVE, serving(self._vitals.good()))
            await asyncio.sleep(VITALS_SECONDS)
