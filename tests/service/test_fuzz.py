"""Ten thousand mutated requests: no crash, no INTERNAL, and the right code for each."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable

import grpc
import pytest
from google.protobuf.message import DecodeError

from pixelpod.v1 import images_pb2
from tests.service.conftest import Client, eventually
from tests.service.stub_group import StubGroup

MUTATIONS = 10_000
CALLERS = 16
VALID = images_pb2.GenerateRequest(
    model="tiny", prompt="a red house", negative_prompt="blur", width=64, height=64, num_images=1, steps=1, seed=3
)
GENERATE = "/pixelpod.v1.ImageGeneration/Generate"
EXPECTED = {"OK", "INVALID_ARGUMENT", "NOT_FOUND"}

INTEGERS = [0, 1, -1, 2, 63, 64, 65, 96, 128, 1000, 2**31 - 1, -(2**31)]
NUMBERS = [0.0, -0.0, 1.0, -1.0, 7.5, 20.0, 20.1, 1e308, math.inf, -math.inf, math.nan, 5e-324]
TEXTS = [
    "",
    " ",
    "\u200b",
    "a",
    "a fox " * 4000,
    "城の上の月 🌙\n",
    "\x00",
    "tiny",
    "TINY",
    "tiny ",
    "../tiny",
    "%s%n",
    "\ufffd" * 100,
]


def mutated_bytes(draw: random.Random) -> bytes:
    """A valid request with bytes flipped, cut, doubled or put in."""
    data = bytearray(VALID.SerializeToString())
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(5):
            case 0 if at < len(data):
                data[at] ^= 1 << draw.randrange(8)
            case 1:
                del data[at : at + draw.randint(1, 8)]
            case 2:
                data[at:at] = data[at : at + draw.randint(1, 16)]
            case 3:
                data[at:at] = draw.randbytes(draw.randint(1, 8))
            case 4 if at < len(data):
                data[at] = draw.choice([0, 0x7F, 0x80, 0xFF])
    return bytes(data)


def mutated_fields(draw: random.Random) -> bytes:
    """A valid request with some fields set to values at and beyond every limit, or left out."""
    request = images_pb2.GenerateRequest()
    request.CopyFrom(VALID)
    for field in draw.sample(list(request.DESCRIPTOR.fields), draw.randint(1, 2)):
        if field.message_type is not None or draw.random() < 0.2:
            request.ClearField(field.name)  # type: ignore[arg-type]
        elif field.enum_type is not None:
            setattr(request, field.name, draw.choice([0, 1, 2, 3, 4, 99, -1, 2**31 - 1]))
        elif field.cpp_type == field.CPPTYPE_STRING:
            setattr(request, field.name, draw.choice(TEXTS))
        elif field.cpp_type == field.CPPTYPE_DOUBLE:
            setattr(request, field.name, draw.choice(NUMBERS))
        else:
            setattr(
                request, field.name, draw.choice([number for number in INTEGERS if number >= 0 or field.name != "seed"])
            )
    return request.SerializeToString()


def readable(data: bytes) -> bool:
    try:
        images_pb2.GenerateRequest.FromString(data)
    except DecodeError:
        return False
    return True


@pytest.mark.parametrize("mutate", [mutated_bytes, mutated_fields])
async def test_mutated_requests(start_group, start_frontend, mutate: Callable[[random.Random], bytes]) -> None:
    group: StubGroup = await start_group()
    await group.publish(free_slots=64)
    client: Client = await start_frontend(group)
    call = client.channel.unary_unary(GENERATE)
    draws, codes, wrong = iter(range(MUTATIONS // 2)), Counter[str](), []

    async def send() -> None:
        for seed in draws:
            data = mutate(random.Random(seed))
            try:
                await call(data, timeout=30)
                code = "OK"
            except grpc.aio.AioRpcError as error:
                code = error.code().name
                if len(error.details() or "") > 1024:
                    wrong.append((seed, "message too long"))
            codes[code] += 1
            # An id that was used for other parameters a moment ago is refused, rightly.
            if code not in EXPECTED | {"ALREADY_EXISTS"} or (code != "INVALID_ARGUMENT" and not readable(data)):
                wrong.append((seed, code))

    await asyncio.gather(*(send() for _ in range(CALLERS)))
    assert wrong == []
    assert sum(codes.values()) == MUTATIONS // 2
    assert min(codes["OK"], codes["INVALID_ARGUMENT"], codes["NOT_FOUND"]) > 20, f"they are not all alike: {codes}"
    await client.generate()
    await eventually(lambda: client.in_flight == 0)
