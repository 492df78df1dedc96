"""The process of one rank, started by the launcher as `python -m workers.rank`.

Until the group is READY a signal ends a rank on the spot: nothing was accepted. From then on rank 0 drains, and the
others ignore signals and leave when rank 0 says so.

What needs torch is imported within functions: rank 0's endpoint answers some seconds before torch is there.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import NoReturn

from pixelpod.server.descriptors import raise_descriptor_limit
from pixelpod.server.errors import Unavailable
from pixelpod.server.garbage import collection_paused, keep_for_good
from pixelpod.server.logs import configure_logging
from pixelpod.server.memory import keep_freed_memory
from pixelpod.server.metrics import MetricsServer
from pixelpod.server.metrics_access import metrics_certificates
from pixelpod.server.reloading import FileRefused
from pixelpod.server.transport import AddressInUse, PlainTextRefused
from pixelpod.v1 import group_pb2, images_pb2
from workers.devices import device_named
from workers.endpoint import Endpoint
from workers.errors import ModelRefused
from workers.estimates import Estimates
from workers.lifeline import end_with_launcher
from workers.liveness import LIVENESS_FILE_VARIABLE, LivenessFile, Pulse, RankState, RestartReason
from workers.metrics import GroupMetrics
from workers.model_file import ModelFile, load_model_file
from workers.queue import RequestQueue
from workers.settings import GroupSettings
from workers.status import StatusBoard
from workers.vitals import Vitals

logger = logging.getLogger("workers.rank")  # __name__ is __main__ here

_BEATS_PER_TIMEOUT = 10
_BATCHES_WAITING = 2
"""Of the largest size: as many as the queue holds unless settings say otherwise."""
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main() -> int:
    """Serve as the rank that the environment names. Returns the exit code: 0 after an orderly end, 1 otherwise."""
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    end_with_launcher()
    settings, rank = GroupSettings(), int(os.environ["RANK"])  # type: ignore[call-arg]  # from the environment
    model = load_model_file(settings.model)
    group = settings.name or model.name
    configure_logging(settings.log_format, f"{group}/rank{rank}")
    keep_freed_memory()
    raise_descriptor_limit()
    liveness = LivenessFile(Path(os.environ[LIVENESS_FILE_VARIABLE]))
    if liveness.restarts()[RestartReason.NOT_READY] and (settings.cache_dir or model.cache_dir):
        _leave_compile_cache(settings)
    pulse = Pulse(
        liveness,
        local_rank=int(os.environ["LOCAL_RANK"]),
        interval_seconds=settings.liveness_timeout_seconds / _BEATS_PER_TIMEOUT,
    )
    try:
        if rank == 0:
            _Rank0(settings, model, group, pulse).serve()
        else:
            _follow(settings, model, pulse)
    except (AddressInUse, FileRefused, ModelRefused, PlainTextRefused) as refusal:
        logger.error("%s", refusal)
        return 1
    except Exception as error:
        from workers.control import WorldBroken
        from workers.device_lock import DeviceBusy

        if isinstance(error, WorldBroken):
            logger.error("the world broke: %s", error)
        elif isinstance(error, DeviceBusy):
            logger.error("%s", error)
        else:
            logger.exception("this rank failed")
        return 1
    pulse.enter(RankState.LEFT)
    return 0


def _leave_compile_cache(settings: GroupSettings) -> None:
    """Do without the cache, since a start failed and a bad program in it may be why. torch is not there yet."""
    for name in device_named(settings.device).cache_environment(Path()):
        os.environ.pop(name, None)
    logger.warning("the start before failed; this one does without the compile cache")


def _follow(settings: GroupSettings, model: ModelFile, pulse: Pulse) -> None:
    """Obey rank 0 until it says that the world ends."""
    with collection_paused():
        from workers.boundary import SUCCEEDED
        from workers.follower import follow, follow_warm_up
        from workers.world import join_world

    world = join_world(settings, model)
    if not follow_warm_up(world.warming, world.runner):
        return
    keep_for_good()
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    world.serving.gather(SUCCEEDED)
    pulse.enter(RankState.SERVING)
    follow(world.serving, world.runner)


class _Rank0:
    """Rank 0: what its endpoint and its main loop share."""

    def __init__(self, settings: GroupSettings, model: ModelFile, group: str, pulse: Pulse) -> None:
        self._settings = settings
        self._pulse = pulse
        self._model = model
        self._started = time.monotonic()
        epoch = time.time_ns() // 1_000_000
        self._identity = images_pb2.GenerateResponse(
            model=model.name, revision=model.revision, group=group, epoch=epoch
        )
        self._queue = RequestQueue(
            Estimates(),
            settings.queue_limit or _BATCHES_WAITING * model.largest_batch,
            settings.in_flight_limit,
            settings.batch_window_seconds,
        )
        self._status = StatusBoard(group, model, settings.world_size, epoch, self._queue)
        self._metrics = GroupMetrics(model, self._queue, self._status)
        for reason, times in pulse.file.restarts().items():
            self._metrics.restarted(reason.name.lower(), times)
        vitals = Vitals(pulse.file, settings.liveness_timeout_seconds, settings.loading_liveness_timeout_seconds)
        self._endpoint = Endpoint(settings, model, self._queue, self._status, self._metrics, vitals)

    def serve(self) -> None:
        """Answer at once, load, warm up, then lead the other ranks until a signal drains the group."""
        if self._settings.metrics is not None:
            MetricsServer(
                self._settings.metrics,
                self._metrics.registry,
                metrics_certificates(self._settings),
                partial(self._metrics.connection_closed, "metrics"),
            )
        port = self._endpoint.start()
        try:
            self._lead(port)
        except Exception:
            self._say_goodbye("a rank failed, and all ranks of the group start again")
            raise
        self._endpoint.close()

    def _say_goodbye(self, reason: str) -> None:
        """End all requests, since the world broke."""
        self._status.enter(group_pb2.GROUP_STATE_LOADING, reason)
        self._endpoint.close(Unavailable(reason, reason="WORLD_BROKEN", retry_after_seconds=1.0))

    def _end_stalled(self, seconds: float) -> None:
        """End this process, whose main thread hangs."""
        logger.error("no progress for %.1f s: a rank hangs, and all ranks of the group start again", seconds)
        self._pulse.enter(RankState.STALLED)
        self._say_goodbye("a rank hangs, and all ranks of the group start again")
        _exit(1)

    def _lead(self, port: int) -> None:
        with collection_paused():
            from workers.boundary import SUCCEEDED
            from workers.delivery import Deliveries
            from workers.leader import Leader
            from workers.stall import StallWatch
            from workers.warmup import proof_batch, warm_up
            from workers.world import join_world

        settings = self._settings
        world = join_world(settings, self._model, self._metrics.compiled)
        family = world.runner.family
        self._status.tell_traits(family.guidance_used, family.uses_negative_prompt)
        warm_up(self._model, world.warming, world.runner, self._status, self._queue.estimates)
        stall_watch = StallWatch(
            settings.stall_factor,
            settings.stall_floor_seconds,
            compiling=lambda: world.runner.compiles.compiling,
            on_stall=self._end_stalled,
        )
        leader = Leader(
            world.serving,
            world.runner,
            self._queue,
            self._metrics,
            Deliveries(self._identity, self._metrics, settings.encoding_threads),
            settings.heartbeat_seconds,
            stall_watch,
            proof_batch(self._model),
        )
        keep_for_good()
        # Every rank answers once it ignores signals, so that from now on a drain loses nothing.
        world.serving.gather(SUCCEEDED)
        self._endpoint.drain_on(*_STOP_SIGNALS)
        self._pulse.enter(RankState.SERVING)
        stall_watch.start()
        self._status.enter(group_pb2.GROUP_STATE_READY)
        seconds = round(time.monotonic() - self._started, 2)
        logger.info("ready", extra={"listen": settings.listen, "port": port, "seconds": seconds})
        leader.run()


def _exit(code: int) -> NoReturn:
    """End this process now: a broken process group can block the interpreter's own end."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _exit(main())
