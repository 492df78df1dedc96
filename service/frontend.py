"""A frontend process: its servers, and its life from start to drain."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from functools import partial

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from pixelpod.server.access import Access
from pixelpod.server.connections import Connections
from pixelpod.server.descriptors import connections_within_limit, raise_descriptor_limit
from pixelpod.server.errors import Unavailable
from pixelpod.server.garbage import keep_for_good
from pixelpod.server.logs import configure_logging
from pixelpod.server.memory import keep_freed_memory
from pixelpod.server.metrics import MetricsServer
from pixelpod.server.metrics_access import metrics_certificates
from pixelpod.server.probes import LIVE, ProbeServer, serving
from pixelpod.server.reader_interceptor import ReaderInterceptor
from pixelpod.server.readers import Readers
from pixelpod.server.transport import SERVER_OPTIONS, connection_age_options, listen
from service.caller_limits import CallerLimits
from service.discovery import Discovery, sources_of
from service.dispatcher import Dispatcher
from service.generation import Generation
from service.group_access import GroupAccess
from service.groups import Groups
from service.loop_lag import watch_loop_lag
from service.metrics import FrontendMetrics
from service.servicer import SERVICE_NAME, ImageGeneration
from service.settings import FrontendSettings
from service.tasks import spawn

logger = logging.getLogger(__name__)

LAST_WORD_SECONDS = 1.0
"""After the drain: how long the statuses of requests that were cut may take to leave."""


async def run(settings: FrontendSettings) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    Raises:
        AddressInUse: if a port is taken.
        FileRefused: if a file of certificates or tokens can't be used.
        PlainTextRefused: if others could listen in.
    """
    configure_logging(settings.log_format, "frontend")
    keep_freed_memory()
    raise_descriptor_limit()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    frontend = Frontend(settings)
    await frontend.start()
    keep_for_good()
    await stop.wait()
    await frontend.stop()


class Frontend:
    """The servers of a frontend and what they share."""

    def __init__(self, settings: FrontendSettings) -> None:
        self._settings = settings
        self.metrics = FrontendMetrics()
        open_services = () if settings.reflection_needs_token else (reflection.SERVICE_NAME,)
        self._access = Access(
            settings, limits_apply=True, open_services=open_services, on_refusal=self.metrics.refused_stranger
        )
        self._group_access = GroupAccess(
            settings.group_tls_ca_file,
            settings.group_tls_cert_file,
            settings.group_tls_key_file,
            settings.group_tls_name,
            settings.group_token_file,
        )
        self._groups_changed = asyncio.Event()
        self.groups = Groups(
            settings.groups,
            settings.group_silent_seconds,
            on_change=self._groups_changed.set,
            on_status=lambda group: self._dispatcher.group_changed(group),
            access=self._group_access,
        )
        self._discovery = Discovery(
            settings.groups,
            sources_of(settings),
            settings.discovery_seconds,
            self.groups.set_addresses,
            self.metrics,
        )
        self._dispatcher = Dispatcher(self.groups, self.metrics, settings.queue_limit, settings.no_group_seconds)
        limits = CallerLimits()
        generation = Generation(self.groups, self._dispatcher, self.metrics, settings.revision_weights, limits)
        self._health = health.aio.HealthServicer()
        self._draining = False
        self._service = ImageGeneration(self.groups, generation, limits, self.metrics, settings)
        self._readers = Readers(
            settings.reader_stall_seconds,
            settings.unread_bytes,
            settings.caller_unread_bytes,
            on_end=lambda reason: self.metrics.readers_ended.labels(reason).inc(),
        )
        self.metrics.unread_bytes.set_function(lambda: self._readers.unread_bytes)
        self._metrics_certificates = metrics_certificates(settings)
        self._connections = Connections(
            connections_within_limit(settings.connection_limits), partial(self.metrics.connection_closed, "calls")
        )
        self.metrics.connections.set_function(lambda: self._connections.open)
        self._server = grpc.aio.server(
            interceptors=(
                ReaderInterceptor(self._readers),
                *self._access.interceptors,
                *self._connections.interceptors,
            ),
            options=[
                *SERVER_OPTIONS,
                *self._connections.options,
                *connection_age_options(settings.max_connection_age_seconds, settings.max_request_seconds),
                ("grpc.max_receive_message_length", settings.max_request_bytes),
            ],
        )
        self._closing = AsyncExitStack()
        self.port = 0
        """Where the public API listens, once started."""
        self.metrics_port = 0
        """Where /metrics listens, once started; 0 for nowhere."""
        self.probes_port = 0
        """Where probes are answered, once started; 0 for nowhere."""

    async def start(self) -> None:
        """Listen and begin to watch the groups. Health is NOT_SERVING until some group is ready.

        Raises:
            AddressInUse: if a port is taken; nothing listens then.
            PlainTextRefused: if others could listen in.
        """
        async with AsyncExitStack() as closing:
            if self._settings.metrics is not None:
                metrics_server = MetricsServer(
                    self._settings.metrics,
                    self.metrics.registry,
                    self._metrics_certificates,
                    partial(self.metrics.connection_closed, "metrics"),
                )
                closing.push_async_callback(asyncio.to_thread, metrics_server.close)
                self.metrics_port = metrics_server.port
            if self._settings.probes is not None:
                probe_server = ProbeServer(
                    self._settings.probes, self._health, partial(self.metrics.connection_closed, "probes")
                )
                closing.push_async_callback(probe_server.stop)
                self.probes_port = probe_server.port
                await probe_server.start()
            self.port = listen(
                self._server, self._settings.listen, self._access.credentials, insecure=self._settings.insecure
            )
            await self._health.set(LIVE, serving(True))
            await self._show_groups()
            self.groups.start()
            closing.push_async_callback(self.groups.close)
            closing.push_async_callback(self._service.close)
            for follower in (
                spawn(self._follow_groups(), "follow groups"),
                spawn(self._discovery.follow(), "follow discovery"),
                spawn(self._access.follow(), "follow files of access"),
                spawn(self._connections.watch(self.port), "watch connections"),
                spawn(self._group_access.follow(), "follow files of access to groups"),
                spawn(self._readers.watch(), "watch readers"),
                spawn(watch_loop_lag(self.metrics.loop_lag_seconds), "watch loop lag"),
            ):
                closing.callback(follower.cancel)
            self._add_services()
            await self._server.start()
            closing.push_async_callback(self._server.stop, None)
            self._closing = closing.pop_all()
        host = self._settings.listen.rpartition(":")[0]
        logger.info("listening", extra={"address": f"{host}:{self.port}", "metrics_port": self.metrics_port})

    async def stop(self) -> None:
        """Drain and close: NOT_SERVING first, requests are still taken for a while, then finished, then cut.

        Takes at most drain_delay_seconds + drain_seconds + `LAST_WORD_SECONDS`. Every caller gets a status.
        """
        logger.info("draining", extra={"requests": self._service.running})
        self._draining = True
        self._readers.hurry()
        await self._show_groups()
        await asyncio.sleep(self._settings.drain_delay_seconds)
        # From here on new calls are refused. This grace is only the outer bound: it would wait for all calls, also for
        # those that never end, such as health's Watch.
        refusing = asyncio.create_task(self._server.stop(self._settings.drain_seconds + 2 * LAST_WORD_SECONDS))
        await self._service.finish(self._settings.drain_seconds)
        message, reason = "the frontend stopped before the request was done; try again", "FRONTEND_STOPPING"
        self._dispatcher.end_all(Unavailable(message, reason=reason))
        self.groups.cut_requests(message, reason)
        await self._service.finish(LAST_WORD_SECONDS)
        await self._closing.aclose()
        await refusing
        logger.info("stopped")

    def _add_services(self) -> None:
        self._service.add_to(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)

    async def _follow_groups(self) -> None:
        """Keep health and metrics true to the groups."""
        while True:
            await self._groups_changed.wait()
            self._groups_changed.clear()
            self._dispatcher.groups_changed()
            await self._show_groups()

    async def _show_groups(self) -> None:
        for service in ("", SERVICE_NAME):
            await self._health.set(service, serving(self.groups.any_ready and not self._draining))
        self.metrics.show_groups(self.groups)
