"""Who may call a frontend, for what and how much, over real connections."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import pixelpod.server.reloading
from pixelpod.server.errors import from_call
from pixelpod.server.reloading import FileRefused
from pixelpod.server.transport import PlainTextRefused
from pixelpod.v1 import images_pb2
from service.frontend import Frontend
from service.settings import FrontendSettings
from tests.certificates import Authority
from tests.raw_http import get
from tests.service.conftest import PROMPT, WAIT_SECONDS, Client, eventually
from tests.service.stub_group import tiny_model
from tests.tokens import bearer, entry, write_tokens


@pytest.fixture
def tokens_file(tmp_path: Path) -> Path:
    return write_tokens(
        tmp_path / "tokens.json",
        entry("shop", "shop-token"),
        entry("lab", "lab-token", models=["tiny"]),
        entry("slow", "slow-token", max_concurrent_requests=1, images_per_minute=3),
    )


@pytest.fixture(autouse=True)
def _quick_reloading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixelpod.server.reloading, "POLL_SECONDS", 0.02)


async def _generate(client: Client, token: str | None, **fields: object) -> images_pb2.GenerateResponse:
    metadata = () if token is None else bearer(token)
    return await client.images.Generate(client.request(**fields), metadata=metadata, timeout=WAIT_SECONDS)


async def _refusal(client: Client, token: str | None, **fields: object) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await _generate(client, token, **fields)
    return refused.value.code().name, from_call(refused.value).reason


async def test_tokens_decide_who_is_served(start_group, start_frontend, tokens_file) -> None:
    group = await start_group()
    client = await start_frontend(group, tokens_file=tokens_file)
    assert await _refusal(client, None) == ("UNAUTHENTICATED", "TOKEN_MISSING")
    assert await _refusal(client, "no-token") == ("UNAUTHENTICATED", "TOKEN_UNKNOWN")
    assert not group.executed
    counted = client.frontend.metrics.registry.get_sample_value
    for reason in ("TOKEN_MISSING", "TOKEN_UNKNOWN"):
        assert counted("pixelpod_frontend_unauthenticated_total", {"reason": reason}) == 1
    assert (await _generate(client, "shop-token")).images[0].data == group.image


async def test_tokens_decide_which_models_are_there(start_group, start_frontend, tokens_file) -> None:
    other = await start_group("other", tiny_model("other"))
    client = await start_frontend(await start_group(), other, tokens_file=tokens_file)
    await eventually(lambda: len(client.frontend.groups.models) == 2)

    async def listed(token: str) -> list[str]:
        answer = await client.images.ListModels(images_pb2.ListModelsRequest(), metadata=bearer(token))
        return [model.name for model in answer.models]

    assert (await listed("shop-token"), await listed("lab-token")) == (["other", "tiny"], ["tiny"])
    assert (await _generate(client, "shop-token", model="other")).model == "other"
    assert await _refusal(client, "shop-token") == ("INVALID_ARGUMENT", "INVALID_PARAMETER")  # a choice of two
    assert (await _generate(client, "lab-token")).model == "tiny"  # its only one
    # Whether a model that it may not use exists is nothing to a caller.
    for model in ("other", "no-such-model"):
        assert await _refusal(client, "lab-token", model=model) == ("PERMISSION_DENIED", "MODEL_NOT_ALLOWED")
    assert await _refusal(client, "shop-token", model="no-such-model") == ("NOT_FOUND", "UNKNOWN_MODEL")
    assert [request.model for request in other.executed] == ["other"]


async def test_replaced_tokens_count_without_a_restart(start_group, start_frontend, tokens_file) -> None:
    client = await start_frontend(await start_group(), tokens_file=tokens_file)
    await _generate(client, "shop-token")
    write_tokens(tokens_file, entry("shop", "new-token"))

    async def known() -> bool:
        try:
            await _generate(client, "new-token")
        except grpc.aio.AioRpcError:
            return False
        return True

    await eventually(known)
    assert await _refusal(client, "shop-token") == ("UNAUTHENTICATED", "TOKEN_UNKNOWN")


async def test_requests_at_once_are_limited_however_they_end(start_group, start_frontend, tokens_file) -> None:
    group = await start_group()
    group.go_on.clear()
    client = await start_frontend(group, tokens_file=tokens_file)
    first = asyncio.create_task(_generate(client, "slow-token"))
    await asyncio.wait_for(group.stepped.wait(), WAIT_SECONDS)
    assert await _refusal(client, "slow-token") == ("RESOURCE_EXHAUSTED", "CALLER_BUSY")
    others = asyncio.create_task(_generate(client, "shop-token"))
    await eventually(lambda: len(group.executed) == 2)
    first.cancel()
    await eventually(lambda: client.in_flight == 1)
    group.go_on.set()
    assert (await _generate(client, "slow-token")).images
    assert (await others).images
    await eventually(lambda: client.in_flight == 0)


async def test_images_a_minute_are_limited(start_group, start_frontend, tokens_file) -> None:
    client = await start_frontend(await start_group(), tokens_file=tokens_file)
    await _generate(client, "slow-token", num_images=2)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await _generate(client, "slow-token", num_images=2)
    error = from_call(refused.value)
    assert (refused.value.code().name, error.reason) == ("RESOURCE_EXHAUSTED", "CALLER_RATE")
    assert 15 < error.retry_after_seconds <= 20
    assert await _refusal(client, "slow-token", steps=1000) == ("INVALID_ARGUMENT", "INVALID_PARAMETER")  # takes none
    await _generate(client, "slow-token", num_images=1)
    await _generate(client, "shop-token", num_images=4)


async def _reflect(client: Client, metadata: object) -> int:
    requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    return len([answer async for answer in stub.ServerReflectionInfo(requests, metadata=metadata)])


async def test_health_is_open_and_reflection_is_not_by_default(start_group, start_frontend, tokens_file) -> None:
    client = await start_frontend(await start_group(), tokens_file=tokens_file)
    await client.health_of()
    with pytest.raises(grpc.aio.AioRpcError, match="needs a token"):
        await _reflect(client, ())
    assert await _reflect(client, bearer("lab-token")) == 1


async def test_health_can_be_closed_and_reflection_opened(start_group, start_frontend, tokens_file) -> None:
    client = await start_frontend(
        await start_group(),
        ready=False,
        tokens_file=tokens_file,
        health_needs_token=True,
        reflection_needs_token=False,
    )
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.health_of()
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    await client.health.Check(health_pb2.HealthCheckRequest(), metadata=bearer("lab-token"))
    assert await _reflect(client, ()) == 1


async def test_without_a_tokens_file_everybody_is_served(start_group, start_frontend) -> None:
    client = await start_frontend(await start_group())
    assert (await _generate(client, "any-token")).images
    assert await _reflect(client, ()) == 1


async def test_tls_with_a_certificate_that_is_replaced_while_running(start_group, start_frontend, tmp_path) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    pair = old.issue()
    client = await start_frontend(
        await start_group(),
        tls=grpc.ssl_channel_credentials(old.file.read_bytes()),
        tls_cert_file=pair.cert_file,
        tls_key_file=pair.key_file,
    )
    await client.generate()
    pair.replace_by(new.issue())
    address, options = f"127.0.0.1:{client.frontend.port}", [("grpc.use_local_subchannel_pool", 1)]

    async def new_certificate_is_shown() -> bool:
        credentials = grpc.ssl_channel_credentials(new.file.read_bytes())
        async with grpc.aio.secure_channel(address, credentials, options) as channel:
            try:
                await Client(channel).generate()
            except grpc.aio.AioRpcError:
                return False
        return True

    await eventually(new_certificate_is_shown)
    await client.generate()  # the old connection goes on


async def test_no_log_line_tells_a_token_or_a_prompt(start_group, start_frontend, tokens_file, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    client = await start_frontend(await start_group(), tokens_file=tokens_file)
    await _generate(client, "shop-token")
    await _refusal(client, "wrong-token")
    await _refusal(client, "lab-token", model="other")
    await eventually(lambda: client.in_flight == 0)
    lines = [str(vars(record)) for record in caplog.records]
    assert [record.caller for record in caplog.records if record.msg == "request ended"] == ["shop", "lab"]
    assert not [line for line in lines if re.search(rf"(shop|wrong|lab)-token|{PROMPT}", line)]


async def test_plain_text_beyond_loopback_is_refused(tmp_path: Path) -> None:
    frontend = Frontend(FrontendSettings(groups=["127.0.0.1:1"], listen="0.0.0.0:0", metrics=None))
    with pytest.raises(PlainTextRefused, match=r"0\.0\.0\.0:0 is not loopback"):
        await frontend.start()


async def test_files_that_can_not_be_used_stop_the_start(tmp_path: Path) -> None:
    for setting in ("tokens_file", "group_tls_ca_file"):
        with pytest.raises(FileRefused, match="absent"):
            Frontend(FrontendSettings(groups=["127.0.0.1:1"], **{setting: tmp_path / "absent"}))
    metrics_files = {"metrics_tls_cert_file": tmp_path / "absent", "metrics_tls_key_file": tmp_path / "absent"}
    with pytest.raises(FileRefused, match="absent"):
        Frontend(FrontendSettings(groups=["127.0.0.1:1"], **metrics_files))


async def test_metrics_over_mutual_tls(start_frontend, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, prometheus = authority.issue(), authority.issue("prometheus")
    client = await start_frontend(
        "127.0.0.1:1",
        ready=False,
        metrics_tls_cert_file=server.cert_file,
        metrics_tls_key_file=server.key_file,
        metrics_tls_client_ca_file=authority.file,
    )
    context = ssl.create_default_context(cafile=authority.file)
    context.load_cert_chain(prometheus.cert_file, prometheus.key_file)
    reply = await asyncio.to_thread(get, client.frontend.metrics_port, context=context)
    assert reply.status == 200
    assert b"pixelpod_frontend_connections " in reply.body
