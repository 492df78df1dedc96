"""Exceptions become statuses in one place, and statuses become the same exceptions again."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import grpc
import pytest

from pixelpod.server.errors import (
    MAX_MESSAGE_BYTES,
    RETRY_PUSHBACK_KEY,
    STATUS_CODES,
    ErrorInterceptor,
    InvalidRequest,
    Overloaded,
    RequestError,
    Unavailable,
    from_call,
    status_code_of,
)
from pixelpod.server.transport import SERVER_OPTIONS, listen
from pixelpod.v1 import images_pb2, images_pb2_grpc


class Failing(images_pb2_grpc.ImageGenerationServicer):
    """Raises what the test puts into `error`, before or after a first event."""

    error: Exception
    events_before = 0

    async def Generate(self, request, context):  # noqa: N802 -- gRPC's name
        raise self.error

    async def GenerateStream(self, request, context):  # noqa: N802 -- gRPC's name
        for _ in range(self.events_before):
            yield images_pb2.GenerateEvent(accepted=images_pb2.Accepted())
        raise self.error


@pytest.fixture
def servicer() -> Failing:
    return Failing()


@pytest.fixture
async def stub(servicer: Failing) -> AsyncIterator[images_pb2_grpc.ImageGenerationAsyncStub]:
    server = grpc.aio.server(interceptors=[ErrorInterceptor()], options=SERVER_OPTIONS)
    images_pb2_grpc.add_ImageGenerationServicer_to_server(servicer, server)
    port = listen(server, "127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield images_pb2_grpc.ImageGenerationStub(channel)
    await server.stop(grace=None)


def _example(kind: type[RequestError]) -> RequestError:
    if kind is InvalidRequest:
        return InvalidRequest("steps", "steps is 99; at most 50")
    error = kind.__new__(kind)
    RequestError.__init__(error, "what and why", reason="A_REASON", field=None, retry_after_seconds=1.5)
    return error


@pytest.mark.parametrize("kind", STATUS_CODES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("events_before", [0, 1])
async def test_every_error_survives_the_wire(kind, events_before, servicer, stub) -> None:
    sent = _example(kind)
    servicer.error, servicer.events_before = sent, events_before
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in stub.GenerateStream(images_pb2.GenerateRequest()):
            pass
    received = from_call(caught.value)
    assert status_code_of(received) is status_code_of(sent), "kinds with one code are told apart by their reasons"
    assert caught.value.code() is STATUS_CODES[kind]
    assert vars(received) == vars(sent)


async def test_retry_delay_is_also_a_pushback_header(servicer, stub) -> None:
    servicer.error = Overloaded("queue is full", reason="QUEUE_FULL", retry_after_seconds=0.25)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Generate(images_pb2.GenerateRequest())
    assert dict(caught.value.trailing_metadata())[RETRY_PUSHBACK_KEY] == "250"


async def test_no_retry_is_asked_for_that_would_come_too_late(servicer, stub) -> None:
    servicer.error = Overloaded("queue is full", reason="QUEUE_FULL", retry_after_seconds=30)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Generate(images_pb2.GenerateRequest(), timeout=10)
    assert dict(caught.value.trailing_metadata())[RETRY_PUSHBACK_KEY] == "-1"
    assert from_call(caught.value).retry_after_seconds == 30


async def test_unknown_error_becomes_internal_with_an_incident_that_the_log_explains(servicer, stub, caplog) -> None:
    servicer.error = ZeroDivisionError("secret detail")
    with caplog.at_level(logging.ERROR), pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Generate(images_pb2.GenerateRequest(prompt="a private prompt"))
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret detail" not in caught.value.details()
    (record,) = [record for record in caplog.records if hasattr(record, "incident")]
    assert record.incident in caught.value.details()
    assert record.exc_info[0] is ZeroDivisionError
    assert "a private prompt" not in caplog.text


async def test_long_messages_are_cut_without_breaking_a_character(servicer, stub) -> None:
    servicer.error = Unavailable("ü" * 5000, reason="LONG")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Generate(images_pb2.GenerateRequest())
    assert caught.value.details() == "ü" * (MAX_MESSAGE_BYTES // 2)


async def test_status_that_no_pixelpod_server_made_is_mapped_by_its_code() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await images_pb2_grpc.ImageGenerationStub(channel).Generate(images_pb2.GenerateRequest(), timeout=10)
    error = from_call(caught.value)
    assert type(error) is Unavailable
    assert error.reason == "UNAVAILABLE"
