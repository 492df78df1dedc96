"""One frontend's answers over a data plane that a test drives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from pixelpod.v1 import images_pb2
from service.answers import Answers
from service.metrics import FrontendMetrics
from tests.service.answers.plane import KEPT_BYTES, Call, Plane
from tests.service.conftest import WAIT_SECONDS


@pytest.fixture
async def plane() -> Plane:
    return Plane()


@pytest.fixture
def metrics() -> FrontendMetrics:
    return FrontendMetrics()


@pytest.fixture
async def call(plane: Plane, metrics: FrontendMetrics) -> AsyncIterator[Callable[..., Call]]:
    """Begin calls of callers of one frontend, which keeps answers for longer than any test."""
    answers = Answers(plane.generate, metrics, 60.0, KEPT_BYTES)

    def begin(request_id: str = "r", caller: str = "", seconds: float = WAIT_SECONDS, **fields: object) -> Call:
        return Call(answers, caller, images_pb2.GenerateRequest(request_id=request_id, prompt="x", **fields), seconds)

    yield begin
    plane.go_on()
    await answers.close()
