"""A service whose parts are stopped and killed."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import grpc
import psutil
import pytest

from pixelpod.client import Client, Generation, Progress, UnavailableError
from tests.e2e.groups import write_quick_model
from tests.e2e.processes import NOT_SERVING, health_of, wait_serving, wait_until
from tests.e2e.services import serving

STOP_SECONDS = 10.0
SECONDS = 60.0


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_quick_model(tmp_path_factory.mktemp("flux2"))


def test_from_a_killed_rank_to_an_orderly_end(model_file: Path) -> None:
    with serving(model_file, ranks=2) as service, service.client() as client:
        running = _Running(client, steps=50)
        running.wait_for_a_step()
        rank = next(child for child in service.group.children() if child.environ().get("RANK") == "1")
        rank.kill()
        wait_until(lambda: health_of(service.address) == NOT_SERVING, 10, lambda: service.log)
        # The client asks again for as long as the frontend says it is worth it, and the group is back in time.
        assert isinstance(running.ending(), Generation)
        wait_serving(service.address, 90, service.frontend)

        # SIGTERM to the group: what runs is finished, the frontend stays and says that nobody is there.
        running = _Running(client, steps=20)
        running.wait_for_a_step()
        group_children = service.group.children()
        assert service.group.stop(STOP_SECONDS) == 0
        assert isinstance(running.ending(), Generation)
        assert not [child for child in group_children if child.is_running()]
        wait_until(lambda: health_of(service.address) == NOT_SERVING, 10, lambda: service.log)
        with pytest.raises(UnavailableError):
            client.generate("a red fox", deadline_seconds=2)
        assert service.frontend.stop(STOP_SECONDS) == 0


def test_frontend_finishes_what_it_accepted(model_file: Path) -> None:
    with serving(model_file, ranks=1) as service, service.client() as client:
        running = _Running(client, steps=20)
        running.wait_for_a_step()
        service.frontend.send(signal.SIGTERM)
        assert isinstance(running.ending(), Generation)
        assert service.frontend.wait(STOP_SECONDS) == 0
        assert psutil.pid_exists(service.group.pid)
        with grpc.insecure_channel(service.address) as channel, pytest.raises(grpc.FutureTimeoutError):
            grpc.channel_ready_future(channel).result(timeout=1)
        assert service.group.stop(STOP_SECONDS) == 0


class _Running:
    """A request on a thread of its own."""

    def __init__(self, client: Client, steps: int) -> None:
        self._ending: Generation | Exception | None = None
        self._stepped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(client, steps))
        self._thread.start()

    def _run(self, client: Client, steps: int) -> None:
        try:
            self._ending = client.generate("a fox", steps=steps, on_progress=self._progress, deadline_seconds=SECONDS)
        except Exception as error:  # noqa: BLE001 -- the test looks at it
            self._ending = error

    def _progress(self, progress: Progress) -> None:
        self._stepped.set()

    def wait_for_a_step(self) -> None:
        assert self._stepped.wait(SECONDS)

    def ending(self) -> Generation | Exception | None:
        """Return what the request ended with."""
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
        return self._ending
