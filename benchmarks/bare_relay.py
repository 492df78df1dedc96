"""The least that a second hop can do: the floors of the overhead benchmark.

python -m benchmarks.bare_relay --server ADDRESS | --group ADDRESS

It has one method, Generate, and passes answers on as they are: with --server those of a bare server, with --group those
of a timed group, which it asks always for the same.
"""

from __future__ import annotations

import argparse
from typing import Any

import grpc
import uvloop

from benchmarks.processes import announce
from benchmarks.timed_model import timed_model
from pixelpod.server.memory import keep_freed_memory
from pixelpod.v1 import group_pb2, images_pb2
from service.group_connection import CHANNEL_OPTIONS

SERVICE, METHOD = "pixelpod.v1.ImageGeneration", "Generate"
TIMEOUT_SECONDS = 30.0


def to_server(channel: grpc.aio.Channel) -> Any:
    """Return a handler that passes calls on as they are."""
    upstream: Any = channel.unary_unary(f"/{SERVICE}/{METHOD}")

    async def pass_on(request: bytes, context: Any) -> bytes:
        answer: bytes = await upstream(request)
        return answer

    return pass_on


def to_group(channel: grpc.aio.Channel) -> Any:
    """Return a handler that asks a timed group."""
    upstream: Any = channel.unary_unary("/pixelpod.v1.WorkerGroup/Execute")
    request = _request().SerializeToString()

    async def ask(_: bytes, context: Any) -> bytes:
        answer: bytes = await upstream(request, timeout=TIMEOUT_SECONDS)
        return answer

    return ask


def _request() -> group_pb2.ExecuteRequest:
    model = timed_model()
    parameters = images_pb2.ResolvedParameters(
        width=model.defaults.width,
        height=model.defaults.height,
        num_images=1,
        steps=1,
        guidance_scale=model.defaults.guidance_scale,
        max_sequence_length=model.defaults.max_sequence_length,
        seeds=[1],
        output_format=images_pb2.OUTPUT_FORMAT_PNG,
    )
    return group_pb2.ExecuteRequest(request_id="r", model=model.name, prompt="a red fox", parameters=parameters)


async def serve(arguments: argparse.Namespace) -> None:
    channel = grpc.aio.insecure_channel(arguments.server or arguments.group, CHANNEL_OPTIONS)
    handle = to_server(channel) if arguments.server else to_group(channel)
    server = grpc.aio.server()
    handlers = {METHOD: grpc.unary_unary_rpc_method_handler(handle)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    await announce(server)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    upstream = parser.add_mutually_exclusive_group(required=True)
    upstream.add_argument("--server", help="address of a bare server")
    upstream.add_argument("--group", help="address of a timed group")
    keep_freed_memory()
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
