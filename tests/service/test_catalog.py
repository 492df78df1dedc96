"""The catalog merges what groups publish, and tells a wrong name from a model that is not there yet."""

from __future__ import annotations

import grpc
import pytest

from pixelpod.server.errors import InvalidRequest, Unavailable, UnknownModel, from_call
from pixelpod.v1 import group_pb2, images_pb2
from service.availability import Availability
from service.group_connection import CONTRACT_VERSION
from tests.service.conftest import Client, eventually
from tests.service.stub_group import StubGroup, tiny_model

LOADING = group_pb2.GROUP_STATE_LOADING


async def models(client: Client) -> list[images_pb2.Model]:
    return list((await client.images.ListModels(images_pb2.ListModelsRequest())).models)


async def listed(client: Client, count: int) -> None:
    """Wait until so many models are listed."""

    async def met() -> bool:
        return len(await models(client)) == count

    await eventually(met)


def cold(model: images_pb2.Model, *sizes: tuple[int, int]) -> images_pb2.Model:
    for bucket in model.buckets:
        bucket.warm = (bucket.width, bucket.height) not in sizes
    return model


async def test_models_are_sorted_with_limits_and_defaults(start_group, start_frontend) -> None:
    client = await start_frontend(await start_group("g1", tiny_model("b")), await start_group("g2", tiny_model("a")))
    await listed(client, 2)
    expected = [tiny_model("a"), tiny_model("b")]
    for model in expected:
        model.ready_groups = 1
    assert await models(client) == expected


async def test_groups_of_one_model_are_merged(start_group, start_frontend) -> None:
    other = cold(tiny_model(), (64, 64), (96, 64))
    other.buckets.add(width=256, height=256, batch_sizes=[1])
    groups = [
        await start_group("g1", cold(tiny_model(), (96, 64), (128, 128))),
        await start_group("g2", other),
        await start_group("g3"),
    ]
    await groups[2].publish(state=LOADING)
    client = await start_frontend(*groups)

    async def merged() -> bool:
        return (await models(client))[0].ready_groups == 2

    await eventually(merged)
    (model,) = await models(client)
    warm = {(bucket.width, bucket.height): bucket.warm for bucket in model.buckets}
    # 96x64 is warm on g3 only, which is not ready.
    assert warm == {(64, 64): True, (96, 64): False, (128, 128): True, (256, 256): False}


async def test_models_of_loading_and_lost_groups_are_listed(start_group, start_frontend) -> None:
    group: StubGroup = await start_group()
    group.status.state = LOADING
    client = await start_frontend(group, ready=False)
    await listed(client, 1)
    (model,) = await models(client)
    assert model.ready_groups == 0
    assert not any(bucket.warm for bucket in model.buckets)
    await group.stop()
    await listed(client, 1)


async def test_empty_name_means_the_only_model(start_group, start_frontend) -> None:
    client = await start_frontend(await start_group())
    assert (await client.generate(model="")).model == "tiny"


async def refused(client: Client, **fields: object) -> Exception:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.generate(**fields)
    return from_call(raised.value)


async def test_empty_name_among_several_is_refused(start_group, start_frontend) -> None:
    client = await start_frontend(await start_group("g1", tiny_model("b")), await start_group("g2", tiny_model("a")))
    await listed(client, 2)
    error = await refused(client, model="")
    assert isinstance(error, InvalidRequest)
    assert error.field == "model"
    assert "choose one of a, b" in error.message


async def test_unknown_name(start_group, start_frontend) -> None:
    client = await start_frontend(await start_group())
    error = await refused(client, model="tyni\n" + "x" * 100_000)
    assert isinstance(error, UnknownModel)
    assert error.field == "model"
    assert "model 'tyni\\nx" in error.message
    assert "choose one of tiny" in error.message
    assert len(error.message) < 200


async def test_names_listed_are_bounded(start_group, start_frontend) -> None:
    groups = [await start_group(f"g{number:02}", tiny_model(f"model-{number:02}")) for number in range(12)]
    client = await start_frontend(*groups)
    await listed(client, 12)
    error = await refused(client, model="nope")
    assert "model-00, model-01" in error.message
    assert "model-09 and 2 more" in error.message
    assert "model-10" not in error.message


async def test_unknown_name_while_a_group_was_not_heard_yet(start_group, start_frontend) -> None:
    client = await start_frontend(await start_group(), "127.0.0.1:1")
    error = await refused(client, model="other")
    assert isinstance(error, Unavailable)
    assert (error.reason, error.retry_after_seconds) == ("GROUPS_UNREACHABLE", 1)


async def test_only_incompatible_groups(start_group, start_frontend) -> None:
    groups = [await start_group(), await start_group()]
    groups[0].status.contract_version, groups[1].status.contract_version = 99, 1
    client = await start_frontend(*groups, ready=False)

    async def both_known() -> bool:
        return "2 groups speak" in (await refused(client)).message

    await eventually(both_known)
    error = await refused(client, model="tiny")
    assert isinstance(error, Unavailable)
    assert (error.reason, error.retry_after_seconds) == ("GROUPS_INCOMPATIBLE", 10)
    assert "model 'tiny': 2 groups speak version 1 and 99 of the contract" in error.message
    assert f"this frontend speaks {CONTRACT_VERSION};" in error.message


async def test_incompatible_group_beside_others_may_serve_what_they_do_not(start_group, start_frontend) -> None:
    incompatible = await start_group()
    incompatible.status.contract_version = 1
    client = await start_frontend(await start_group(model=tiny_model("a")), incompatible)
    await eventually(lambda: all(group.availability is not Availability.GONE for group in client.frontend.groups))
    assert (await refused(client, model="b")).reason == "GROUPS_INCOMPATIBLE"
    assert (await client.generate(model="a")).model == "a"
