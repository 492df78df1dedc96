"""Starts a group: checks everything that can be checked, then has torchrun's elastic agent run the ranks.

The agent starts a broken world again, `max_restarts` times, and forwards SIGTERM and SIGINT to the ranks.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import socket
import sys
import tempfile
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from pixelpod.server.access import Access
from pixelpod.server.garbage import collection_paused
from pixelpod.server.logs import configure_logging
from pixelpod.server.metrics_access import metrics_certificates
from pixelpod.server.transport import AddressInUse, check_plain_text
from workers.checkpoint import verify_checkpoint
from workers.devices import device_named
from workers.errors import ModelRefused
from workers.lifeline import LAUNCHER_PID_VARIABLE
from workers.liveness import LIVENESS_FILE_VARIABLE, LivenessFile
from workers.liveness_watch import LivenessWatch
from workers.model_file import load_model_file
from workers.second_signal import end_on_second_signal
from workers.settings import GroupSettings

logger = logging.getLogger(__name__)

_KILL_MARGIN_SECONDS = 5
"""Ranks that live this long after their drain time are killed."""

_CHATTY_LOGGERS = (
    "torch.distributed.launcher.api",
    "torch.distributed.elastic.agent.server.api",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.distributed.elastic.multiprocessing.api",
)
"""torchrun's, whose warnings tell how it works; its errors tell which rank ended how."""

_RANK_ENVIRONMENT = {
    "TORCH_ELASTIC_WORKER_IDENTICAL": "1",  # every node has as many ranks: their numbers follow from its own
    "HF_HUB_OFFLINE": "1",  # checkpoints are local folders
    "TQDM_DISABLE": "1",  # the log is no terminal
    "TRANSFORMERS_VERBOSITY": "error",
}
"""For all ranks on all devices."""


def launch(settings: GroupSettings) -> int:
    """Run a group until SIGTERM or SIGINT, or until its world is broken beyond `max_restarts`.

    Only the main thread can call this: it handles signals, and its death is what ends the ranks.

    Returns:
        The exit code: 0 after a signal, 1 when the world broke for good or another node did not come. A second signal
        ends the process with 1.

    Raises:
        ModelRefused: before any process starts, if the model can't be served as the model file and `ranks` ask.
        AddressInUse: before any process starts, if an address that this node listens on can't be had.
        FileRefused: before any process starts, if a file of certificates or tokens can't be used.
        PlainTextRefused: before any process starts, if others could listen in on the endpoint.
    """
    model = load_model_file(settings.model)
    device = device_named(settings.device)
    device.verify(model)
    verify_checkpoint(model, settings.world_size)
    if settings.node_rank == 0:
        if Access(settings, limits_apply=False).credentials is None:
            check_plain_text(settings.listen, settings.insecure)
        metrics_certificates(settings)
        rendezvous = settings.rendezvous if settings.nodes > 1 else None
        for address in (settings.listen, settings.metrics, settings.probes, rendezvous):
            if address is not None:
                _require_free(address)
    group = settings.name or model.name
    configure_logging(settings.log_format, f"{group}/launcher{settings.node_rank or ''}")
    logger.info("starting", extra={"model": model.name, "ranks": settings.world_size, "device": settings.device})
    os.environ.update(device.prepare_environment(settings.ranks, model.execution, settings.nodes, settings.node_rank))
    if (cache_dir := settings.cache_dir or model.cache_dir) is not None:
        _require_writable(cache_dir)
        os.environ.update(device.cache_environment(cache_dir.resolve()))
    os.environ.update(settings.environment())
    os.environ[LAUNCHER_PID_VARIABLE] = str(os.getpid())
    os.environ.update(_RANK_ENVIRONMENT)
    if _on_one_host(settings):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # the ranks have nothing to say to the network
    with tempfile.TemporaryDirectory(prefix="pixelpod-") as folder:
        end_on_second_signal(clean_up=partial(shutil.rmtree, folder))
        _watch_ranks(settings, Path(folder) / "liveness")
        return _run_world(settings, group)


def _watch_ranks(settings: GroupSettings, path: Path) -> None:
    """Have stopped ranks of this host killed, and those that outlive their world."""
    os.environ[LIVENESS_FILE_VARIABLE] = str(path)
    file = LivenessFile.create(path, settings.ranks)
    LivenessWatch(file, settings.liveness_timeout_seconds, settings.loading_liveness_timeout_seconds).start()


def _run_world(settings: GroupSettings, group: str) -> int:
    # torch is imported only now: it takes a second that a refusal need not wait for, and reads the environment.
    with collection_paused():
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        from workers import rendezvous
        from workers.torch_logs import adopt_torch_logs

    def stop(number: int, _: object) -> None:
        raise SignalException(f"got signal {number}", signal.Signals(number))

    # Until ranks run: from then on the agent handles signals in the same way.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    rendezvous.register()
    adopt_torch_logs()
    for name in _CHATTY_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    config = LaunchConfig(
        min_nodes=settings.nodes,
        max_nodes=settings.nodes,
        nproc_per_node=settings.ranks,
        run_id=group,
        role=group,
        rdzv_backend=rendezvous.NODES if settings.nodes > 1 else rendezvous.ONE_NODE,
        rdzv_endpoint=settings.rendezvous or "",
        rdzv_configs={"rank": settings.node_rank, "timeout": settings.join_timeout_seconds},
        max_restarts=settings.max_restarts,
        monitor_interval=0.1,
        signals_to_handle="SIGTERM,SIGINT",
        shutdown_timeout=math.ceil(settings.drain_seconds) + _KILL_MARGIN_SECONDS,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
    )
    try:
        # -P: the folder that the launcher was started in must not shadow modules.
        elastic_launch(config, sys.executable)("-P", "-m", "workers.rank")
    except SignalException as signalled:
        logger.info("stopped by %s", signalled.sigval.name)
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        logger.error("the world broke for good: rank %s ended with exit code %s", rank, failure.exitcode)
        return 1
    except rendezvous.NodesMissing as missing:
        logger.error("the other nodes did not come: %s", missing)
        return 1
    return 0


def _on_one_host(settings: GroupSettings) -> bool:
    """Tell whether all ranks are on this host: there is one node, or the nodes meet on loopback."""
    if settings.nodes == 1 or settings.rendezvous is None:
        return True
    try:
        return ip_address(settings.rendezvous.rpartition(":")[0].strip("[]")).is_loopback
    except ValueError:  # a name
        return False


def _require_writable(folder: Path) -> None:
    """Make `folder`, if it is not there, and check that files can be written there.

    Raises:
        ModelRefused: if they can't.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ModelRefused(f"cache folder {folder}: {error.strerror}; choose one that can be written") from error


def _require_free(address: str) -> None:
    """Check that `address`, "host:port", can be listened on.

    Raises:
        AddressInUse: if it can't.
    """
    host, _, port = address.rpartition(":")
    try:
        family, kind, _, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            # As servers do: connections that linger from a server before don't count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
    except OSError as error:
        raise AddressInUse(f"cannot listen on {address}: {error}") from error
