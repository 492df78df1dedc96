"""What a caller sees when a call ends without its result, and what is tried again."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from pixelpod.client import (
    AnswerTooLargeError,
    AsyncClient,
    Client,
    DeadlineError,
    GenerateOptions,
    InvalidRequestError,
    OverloadedError,
    PermissionDeniedError,
    PixelpodError,
    RequestIdReusedError,
    ServerError,
    UnauthenticatedError,
    UnavailableError,
    UnknownModelError,
)
from pixelpod.client.options import build_request
from pixelpod.server import errors as server_errors
from pixelpod.v1 import images_pb2
from tests.pixelpod.client.conftest import Caller
from tests.pixelpod.stub_server import Stopping, StubServer, chunks, closing, events, fail, hang

FILE = b"an image"
DOWN = server_errors.Unavailable("no group is ready", reason="NO_GROUP")
MAX_ATTEMPTS = 4
WAIT_SECONDS = 10.0

CASES = [
    (server_errors.InvalidRequest("steps", "steps is 0; at least 1"), InvalidRequestError, "INVALID_PARAMETER"),
    (server_errors.UnknownModel("no model 'x'"), UnknownModelError, "UNKNOWN_MODEL"),
    (server_errors.Unauthenticated("who?", reason="TOKEN_MISSING"), UnauthenticatedError, "TOKEN_MISSING"),
    (server_errors.PermissionDenied("no", reason="MODEL_NOT_ALLOWED"), PermissionDeniedError, "MODEL_NOT_ALLOWED"),
    (server_errors.AnswerTooLarge("too large", reason="UNARY_RESPONSE_TOO_LARGE"), AnswerTooLargeError, None),
    (server_errors.Overloaded("full", reason="QUEUE_FULL", retry_after_seconds=2.5), OverloadedError, "QUEUE_FULL"),
    (server_errors.AlreadyExists("used", reason="REQUEST_ID_REUSED", field="request_id"), RequestIdReusedError, None),
    (server_errors.DeadlinePassed("too late", reason="DEADLINE"), DeadlineError, "DEADLINE"),
    (server_errors.ComputationFailed("not finite", reason="NOT_FINITE"), ServerError, "NOT_FINITE"),
]


@pytest.mark.parametrize(("error", "kind", "reason"), CASES, ids=[kind.__name__ for _, kind, _ in CASES])
def test_errors_are_mapped(
    server: StubServer, caller: Caller, error: server_errors.RequestError, kind: type[PixelpodError], reason: str | None
) -> None:
    server.script = fail(error)
    with pytest.raises(PixelpodError) as raised:
        caller.generate(server.address)
    assert type(raised.value) is kind
    assert raised.value.code == server_errors.status_code_of(error)
    assert raised.value.message == str(raised.value) == error.message
    assert raised.value.reason == (reason or error.reason)
    assert raised.value.field == error.field
    assert raised.value.retry_after_seconds == error.retry_after_seconds
    assert len(server.requests) == 1, "only UNAVAILABLE is tried again"


def test_server_bug_tells_its_incident(server: StubServer, caller: Caller) -> None:
    server.script = fail(KeyError("secret"))
    with pytest.raises(ServerError, match=r"incident [0-9a-f]{12}") as raised:
        caller.generate(server.address)
    assert (raised.value.code, raised.value.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert "secret" not in raised.value.message


@pytest.mark.parametrize("error", [DOWN, Stopping()], ids=["unavailable", "stopping"])
def test_what_nobody_computes_is_tried_again_with_the_same_request(
    server: StubServer, caller: Caller, error: Exception
) -> None:
    server.script = fail(error, times=2)
    assert caller.generate(server.address).images[0].data == FILE
    assert len(server.requests) == 3
    assert len({request.request_id for request in server.requests}) == 1


def test_tries_are_bounded(server: StubServer, caller: Caller) -> None:
    server.script = fail(DOWN)
    with pytest.raises(UnavailableError, match="no group is ready"):
        caller.generate(server.address)
    assert len(server.requests) == MAX_ATTEMPTS


def test_model_list_is_tried_again(server: StubServer, caller: Caller) -> None:
    def models() -> images_pb2.ListModelsResponse:
        if server.model_calls < 3:
            raise DOWN
        return images_pb2.ListModelsResponse()

    server.models = models
    assert caller.models(server.address) == []
    assert server.model_calls == 3


def test_nobody_listens(caller: Caller) -> None:
    with StubServer() as server:
        address = server.address
    with pytest.raises(UnavailableError, match=address) as raised:
        caller.models(address)
    assert (raised.value.code, raised.value.reason) == (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE")


def test_value_that_fits_no_field_is_refused_before_it_is_sent(server: StubServer, caller: Caller) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        caller.generate(server.address, seed=-1)
    assert (raised.value.field, raised.value.message) == ("seed", "seed takes a whole number from 0 to 2^64 - 1")
    assert server.requests == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("seed", 2**64), ("steps", 2**31), ("guidance_scale", "x"), ("model", "\udc80"), ("output_format", "GIF")],
)
def test_values_that_fit_no_field(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{field} takes") as raised:
        build_request(GenerateOptions("a red fox", **{field: value}))  # type: ignore[arg-type]  # wrong on purpose
    assert raised.value.field == field


def _closing(**changes: object) -> images_pb2.GenerateEvent:
    message = closing(images_pb2.GenerateRequest(), [FILE])
    for name, value in changes.items():
        setattr(message.images[0], name, value)
    return images_pb2.GenerateEvent(done=message)


def _chunk(index: int, offset: int) -> images_pb2.GenerateEvent:
    return images_pb2.GenerateEvent(image_chunk=images_pb2.ImageChunk(index=index, offset=offset, data=FILE))


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([*chunks(0, FILE), _closing(sha256="0" * 64)], "image 0 does not match its SHA-256"),
        ([*chunks(0, FILE), _closing(size_bytes=9)], "image 0 has 8 bytes, the closing message says 9"),
        ([_closing()], "0 images arrived, the closing message names 1"),
        (chunks(0, FILE), "without its closing message"),
        ([_chunk(1, 0), _closing()], "image 1 at byte 0 is out of place"),
        ([_chunk(0, 0), _chunk(0, 0), _closing()], "image 0 at byte 0 is out of place"),
        ([_chunk(0, 0), _chunk(1, 0), _chunk(0, 8), _closing()], "image 0 at byte 8 is out of place"),
    ],
    ids=["digest", "length", "number", "no end", "image skipped", "piece repeated", "images mixed"],
)
def test_broken_answers_are_detected(
    server: StubServer, caller: Caller, messages: list[images_pb2.GenerateEvent], complaint: str
) -> None:
    server.script = events(*messages)
    with pytest.raises(ServerError, match=complaint) as raised:
        caller.generate(server.address)
    assert raised.value.reason == "BROKEN_ANSWER"


def test_broken_answer_ends_the_call_at_once(server: StubServer) -> None:
    server.script = hang(_chunk(1, 0))
    with Client(server.address) as client:
        with pytest.raises(ServerError) as raised:
            client.generate("a red fox")
        # The client is still open, and the error's traceback still holds the call.
        assert server.cancelled.wait(WAIT_SECONDS)
        assert raised.tb is not None


async def test_broken_answer_ends_the_call_at_once_async(server: StubServer) -> None:
    server.script = hang(_chunk(1, 0))
    async with AsyncClient(server.address) as client:
        with pytest.raises(ServerError) as raised:
            await client.generate("a red fox")
        assert await asyncio.to_thread(server.cancelled.wait, WAIT_SECONDS)
        assert raised.tb is not None


def test_events_of_a_newer_server_are_passed_over(server: StubServer, caller: Caller) -> None:
    preview = images_pb2.GenerateEvent.FromString(b"\x2a\x01x")  # field 5, reserved for previews
    assert preview.WhichOneof("event") is None
    server.script = events(preview, *chunks(0, FILE), _closing())
    assert caller.generate(server.address).images[0].data == FILE


def test_kinds_of_warnings_of_a_newer_server_keep_their_number(server: StubServer, caller: Caller) -> None:
    message = _closing()
    message.done.warnings[0].code = 99  # type: ignore[assignment]  # proto3 enums are open
    server.script = events(*chunks(0, FILE), message)
    assert caller.generate(server.address).warnings[0].code == "99"


def test_server_that_is_no_frontend(caller: Caller) -> None:
    other = grpc.server(ThreadPoolExecutor(max_workers=1))
    address = f"127.0.0.1:{other.add_insecure_port('127.0.0.1:0')}"
    other.start()
    try:
        with pytest.raises(ServerError, match=address) as raised:
            caller.models(address)
    finally:
        other.stop(grace=None).wait()
    assert raised.value.code == grpc.StatusCode.UNIMPLEMENTED
