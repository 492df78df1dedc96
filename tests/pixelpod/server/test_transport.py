"""One owner per port; pings are allowed."""

from __future__ import annotations

import grpc
import pytest

from pixelpod.server.transport import SERVER_OPTIONS, AddressInUse, listen


async def test_second_server_on_a_port_is_refused_by_address() -> None:
    first = grpc.aio.server(options=SERVER_OPTIONS)
    port = listen(first, "127.0.0.1:0")
    await first.start()
    try:
        with pytest.raises(AddressInUse, match=f"127.0.0.1:{port}"):
            listen(grpc.aio.server(options=SERVER_OPTIONS), f"127.0.0.1:{port}")
    finally:
        await first.stop(grace=None)


async def test_address_of_another_machine_is_refused() -> None:
    with pytest.raises(AddressInUse, match=r"192\.0\.2\.1"):
        listen(grpc.aio.server(options=SERVER_OPTIONS), "192.0.2.1:0")
