"""TLS and mutual TLS over real connections, and certificates that are replaced while a server runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pixelpod.server.reloading import FileRefused, Reloaded
from pixelpod.server.tls import channel_credentials, server_certificates, server_credentials
from pixelpod.server.transport import SERVER_OPTIONS, listen
from tests.certificates import Authority, Pair

WAIT_SECONDS = 10.0


@dataclass
class Served:
    """A server with TLS."""

    port: int
    certificates: Reloaded[grpc.ServerCertificateConfiguration]

    async def call(self, credentials: grpc.ChannelCredentials | None) -> str:
        """Return the code of a call over a new connection."""
        address = f"127.0.0.1:{self.port}"
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = (
            grpc.aio.insecure_channel(address, options)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials, options)
        )
        async with channel:
            try:
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=WAIT_SECONDS)
            except grpc.aio.AioRpcError as error:
                return error.code().name
        return "OK"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "stranger")


@pytest.fixture
async def serve() -> AsyncIterator:
    servers = []

    async def start(pair: Pair, client_ca_file: Path | None = None) -> Served:
        certificates = server_certificates(pair.cert_file, pair.key_file, client_ca_file)
        server = grpc.aio.server(options=SERVER_OPTIONS)
        health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
        credentials = server_credentials(certificates, clients_need_certificate=client_ca_file is not None)
        port = listen(server, "127.0.0.1:0", credentials)
        await server.start()
        servers.append(server)
        return Served(port, certificates)

    yield start
    for server in servers:
        await server.stop(grace=None)


def _believing(authority: Authority, own: Pair | None = None) -> grpc.ChannelCredentials:
    files = (None, None) if own is None else (own.cert_file, own.key_file)
    return channel_credentials(authority.file, *files).value


async def test_only_clients_that_speak_tls_and_believe_the_authority_get_through(serve, authority, stranger) -> None:
    served = await serve(authority.issue())
    assert await served.call(_believing(authority)) == "OK"
    assert await served.call(None) == "UNAVAILABLE"
    assert await served.call(_believing(stranger)) == "UNAVAILABLE"


async def test_a_certificate_for_another_name_is_not_believed(serve, authority) -> None:
    served = await serve(authority.issue("elsewhere.example"))
    assert await served.call(_believing(authority)) == "UNAVAILABLE"


async def test_mutual_tls_lets_in_only_clients_with_a_certificate_of_the_authority(serve, authority, stranger) -> None:
    served = await serve(authority.issue(), authority.file)
    assert await served.call(_believing(authority, authority.issue("frontend.example"))) == "OK"
    assert await served.call(_believing(authority)) == "UNAVAILABLE"
    assert await served.call(_believing(authority, stranger.issue("frontend.example"))) == "UNAVAILABLE"


async def test_new_connections_get_the_replaced_certificate(serve, authority, stranger) -> None:
    pair = authority.issue()
    served = await serve(pair)
    pair.replace_by(stranger.issue())
    served.certificates.refresh()
    assert await served.call(_believing(stranger)) == "OK"
    assert await served.call(_believing(authority)) == "UNAVAILABLE"


async def test_replaced_client_authorities_count_for_new_connections(serve, authority, stranger, tmp_path) -> None:
    client_ca = tmp_path / "clients.pem"
    client_ca.write_bytes(authority.file.read_bytes())
    served = await serve(authority.issue(), client_ca)
    client_ca.write_bytes(stranger.file.read_bytes())
    served.certificates.refresh()
    assert await served.call(_believing(authority, stranger.issue("frontend.example"))) == "OK"
    assert await served.call(_believing(authority, authority.issue("frontend.example"))) == "UNAVAILABLE"


async def test_broken_new_files_keep_the_old_certificate(serve, authority, caplog) -> None:
    pair = authority.issue()
    served = await serve(pair)
    key = pair.key_file.read_bytes()
    pair.cert_file.write_text("no certificate")
    served.certificates.refresh()
    pair.cert_file.unlink()
    served.certificates.refresh()
    assert await served.call(_believing(authority)) == "OK"
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert str(pair.cert_file) in caplog.records[0].problem
    assert key.decode().splitlines()[1] not in str([vars(record) for record in caplog.records])


async def test_half_a_rotation_waits_for_the_other_half(serve, authority, stranger) -> None:
    pair, new = authority.issue(), stranger.issue()
    served = await serve(pair)
    pair.cert_file.write_bytes(new.cert_file.read_bytes())
    served.certificates.refresh()
    assert await served.call(_believing(authority)) == "OK"
    pair.key_file.write_bytes(new.key_file.read_bytes())
    served.certificates.refresh()
    assert await served.call(_believing(stranger)) == "OK"


@pytest.mark.parametrize("content", [b"", b"no certificate", b"\xff"])
def test_files_without_certificates_are_refused(authority, tmp_path, content: bytes) -> None:
    pair, broken = authority.issue(), tmp_path / "broken.pem"
    broken.write_bytes(content)
    for files in ((broken, pair.key_file, None), (pair.cert_file, broken, None), (*vars(pair).values(), broken)):
        with pytest.raises(FileRefused, match=r"broken\.pem"):
            server_certificates(*files)
    with pytest.raises(FileRefused, match=r"broken\.pem"):
        channel_credentials(broken, None, None)
