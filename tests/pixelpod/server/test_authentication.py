"""Every kind of call needs a known token, and its handler knows whose it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from pixelpod.server.authentication import TokenInterceptor
from pixelpod.server.callers import current_caller, read_tokens_file
from pixelpod.server.errors import ErrorInterceptor, Unauthenticated, from_call
from pixelpod.server.transport import SERVER_OPTIONS, listen
from pixelpod.v1 import images_pb2, images_pb2_grpc
from tests.tokens import bearer, entry, write_tokens

WAIT_SECONDS = 10.0


class Naming(images_pb2_grpc.ImageGenerationServicer):
    """Answers with the name of the caller, at several moments of the call."""

    def __init__(self) -> None:
        self.asked = 0

    async def Generate(self, request: Any, context: Any) -> Any:  # noqa: N802 -- gRPC's name
        self.asked += 1
        await asyncio.sleep(0)
        return images_pb2.GenerateResponse(request_id=await asyncio.create_task(_name()))

    async def GenerateStream(self, request: Any, context: Any) -> Any:  # noqa: N802 -- gRPC's name
        for _ in range(3):
            yield images_pb2.GenerateEvent(accepted=images_pb2.Accepted(request_id=current_caller().name))
            await asyncio.sleep(0)


async def _name() -> str:
    return current_caller().name


class Served:
    """A server with tokens, and a channel to it."""

    def __init__(self, tokens_file: Path, open_services: tuple[str, ...]) -> None:
        self.tokens_file = tokens_file
        self.refusals: list[str] = []
        write_tokens(tokens_file, entry("shop", "shop-token"), entry("lab", "lab-token"))
        self.tokens = read_tokens_file(tokens_file, limits_apply=True)
        interceptors = [ErrorInterceptor(), TokenInterceptor(self.tokens, open_services, self.refusals.append)]
        self.server = grpc.aio.server(interceptors=interceptors, options=SERVER_OPTIONS)
        self.servicer = Naming()
        images_pb2_grpc.add_ImageGenerationServicer_to_server(self.servicer, self.server)
        health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), self.server)
        reflection.enable_server_reflection((reflection.SERVICE_NAME,), self.server)
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{listen(self.server, '127.0.0.1:0')}")

    async def generate(self, metadata: Any, prompt: str = "") -> str:
        stub = images_pb2_grpc.ImageGenerationStub(self.channel)
        request = images_pb2.GenerateRequest(prompt=prompt)
        return (await stub.Generate(request, metadata=metadata, timeout=WAIT_SECONDS)).request_id

    async def stream(self, metadata: Any) -> list[str]:
        stub = images_pb2_grpc.ImageGenerationStub(self.channel)
        call = stub.GenerateStream(images_pb2.GenerateRequest(), metadata=metadata, timeout=WAIT_SECONDS)
        return [event.accepted.request_id async for event in call]

    async def reflect(self, metadata: Any) -> int:
        stub = reflection_pb2_grpc.ServerReflectionStub(self.channel)
        requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        call = stub.ServerReflectionInfo(requests, metadata=metadata, timeout=WAIT_SECONDS)
        return len([answer async for answer in call])

    async def health(self, metadata: Any) -> Any:
        stub = health_pb2_grpc.HealthStub(self.channel)
        return await stub.Check(health_pb2.HealthCheckRequest(), metadata=metadata, timeout=WAIT_SECONDS)

    async def watch_health(self, metadata: Any) -> Any:
        stub = health_pb2_grpc.HealthStub(self.channel)
        call = stub.Watch(health_pb2.HealthCheckRequest(), metadata=metadata, timeout=WAIT_SECONDS)
        answer = await anext(aiter(call))
        call.cancel()
        return answer

    async def unknown_method(self, metadata: Any) -> Any:
        return await self.channel.unary_unary("/no.such.Service/Method")(b"", metadata=metadata, timeout=WAIT_SECONDS)


KINDS = ["generate", "stream", "reflect", "health", "watch_health", "unknown_method"]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Any]:
    started: list[Served] = []

    async def start(*open_services: str) -> Served:
        served = Served(tmp_path / "tokens.json", open_services)
        await served.server.start()
        started.append(served)
        return served

    yield start
    for served in started:
        await served.channel.close()
        await served.server.stop(grace=None)


async def _refusal(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    error = from_call(refused.value)
    assert type(error) is Unauthenticated
    return refused.value.code().name, error.reason


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ((), "TOKEN_MISSING"),
        ((("authorization", "Basic shop-token"),), "TOKEN_MISSING"),
        ((("authorization", "shop-token"),), "TOKEN_MISSING"),
        (bearer("shop-tokem"), "TOKEN_UNKNOWN"),
        (bearer(""), "TOKEN_UNKNOWN"),
    ],
)
async def test_calls_without_a_known_token_are_refused(serve, kind: str, metadata: Any, reason: str) -> None:
    served = await serve()
    assert await _refusal(getattr(served, kind)(metadata)) == ("UNAUTHENTICATED", reason)
    assert served.servicer.asked == 0
    assert served.refusals == [reason]


async def test_a_known_token_opens_everything_that_is_there(serve) -> None:
    served = await serve()
    assert await served.generate(bearer("shop-token")) == "shop"
    assert await served.stream(bearer("lab-token")) == ["lab"] * 3
    assert await served.reflect(bearer("lab-token")) == 1
    assert await served.health((("authorization", "bearer  lab-token "),))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await served.unknown_method(bearer("shop-token"))
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_calls_side_by_side_keep_their_callers(serve) -> None:
    served = await serve()
    tokens = ["shop-token", "lab-token"] * 20
    answers = await asyncio.gather(*(served.stream(bearer(token)) for token in tokens))
    assert answers == [["shop"] * 3, ["lab"] * 3] * 20


async def test_a_large_request_of_a_stranger_is_refused_too(serve) -> None:
    served = await serve()
    assert await _refusal(served.generate((), prompt="x" * 3_000_000)) == ("UNAUTHENTICATED", "TOKEN_MISSING")


async def test_open_services_need_no_token_and_others_do(serve) -> None:
    served = await serve(health.SERVICE_NAME)
    assert await served.health(())
    assert await served.watch_health(bearer("unknown"))
    assert await _refusal(served.reflect(())) == ("UNAUTHENTICATED", "TOKEN_MISSING")
    assert await _refusal(served.generate(())) == ("UNAUTHENTICATED", "TOKEN_MISSING")


async def test_replaced_tokens_count_for_the_next_call(serve) -> None:
    served = await serve()
    write_tokens(served.tokens_file, entry("shop", "new-token"))
    served.tokens.refresh()
    assert await served.generate(bearer("new-token")) == "shop"
    assert await _refusal(served.generate(bearer("shop-token"))) == ("UNAUTHENTICATED", "TOKEN_UNKNOWN")


async def test_a_broken_tokens_file_keeps_the_tokens_before(serve, caplog) -> None:
    served = await serve()
    served.tokens_file.write_text('{"callers": [{"name": "shop", "token": "shop-token"}]}')
    served.tokens.refresh()
    assert await served.generate(bearer("shop-token")) == "shop"
    assert await _refusal(served.generate(bearer("wrong-token"))) == ("UNAUTHENTICATED", "TOKEN_UNKNOWN")
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "shop-token" not in str(vars(record))
