"""The hop from frontend to group: TLS, mutual TLS and a token, which follow their files."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

import pixelpod.server.reloading
from pixelpod.server.errors import from_call
from pixelpod.server.reloading import FileRefused
from service.availability import Availability
from service.group_access import read_token
from tests.certificates import Authority
from tests.service.conftest import eventually
from tests.tokens import entry, write_tokens


@pytest.fixture(autouse=True)
def _quick_reloading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixelpod.server.reloading, "POLL_SECONDS", 0.02)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("frontend-token\n")
    return file


def _served_with(authority: Authority, tmp_path: Path, identity: str = "127.0.0.1") -> dict[str, object]:
    """Return settings of a group with all there is: TLS, mutual TLS and tokens."""
    pair = authority.issue(identity)
    return {
        "tls_cert_file": pair.cert_file,
        "tls_key_file": pair.key_file,
        "tls_client_ca_file": authority.file,
        "tokens_file": write_tokens(tmp_path / "tokens.json", entry("frontend-a", "frontend-token")),
    }


async def test_a_frontend_with_certificate_and_token_is_served(
    start_group, start_frontend, authority, token_file, tmp_path
) -> None:
    group = await start_group(**_served_with(authority, tmp_path, "groups.example"))
    own = authority.issue("frontend.example")
    client = await start_frontend(
        group,
        group_tls_ca_file=authority.file,
        group_tls_cert_file=own.cert_file,
        group_tls_key_file=own.key_file,
        group_tls_name="groups.example",
        group_token_file=token_file,
    )
    assert (await client.generate()).images[0].data == group.image
    assert group.callers == ["frontend-a"]


@pytest.mark.parametrize("missing", ["certificate", "name", "authority"])
async def test_a_hop_that_tls_does_not_allow_leaves_the_group_gone(
    start_group, start_frontend, authority, token_file, tmp_path, missing: str
) -> None:
    group = await start_group(**_served_with(authority, tmp_path, "groups.example"))
    own = authority.issue("frontend.example")
    settings = {
        "group_tls_ca_file": Authority(tmp_path, "stranger").file if missing == "authority" else authority.file,
        "group_tls_name": "" if missing == "name" else "groups.example",
        "group_token_file": token_file,
    }
    if missing != "certificate":
        settings |= {"group_tls_cert_file": own.cert_file, "group_tls_key_file": own.key_file}
    client = await start_frontend(group, ready=False, group_silent_seconds=0.5, **settings)
    (connection,) = client.frontend.groups
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.generate()
    assert from_call(refused.value).reason == "GROUPS_UNREACHABLE"
    assert connection.availability is Availability.GONE


async def test_a_refused_token_is_told_and_a_replaced_one_mends_it(
    start_group, start_frontend, token_file, tmp_path, caplog
) -> None:
    group = await start_group(tokens_file=write_tokens(tmp_path / "tokens.json", entry("a", "other-token")))
    client = await start_frontend(group, ready=False, insecure=True, group_token_file=token_file)
    await eventually(lambda: any(getattr(record, "code", "") == "UNAUTHENTICATED" for record in caplog.records))
    token_file.write_text("other-token")
    await client.serving()
    await client.generate()
    assert group.callers == ["a"]
    assert "other-token" not in caplog.text


async def test_a_group_that_refuses_the_frontend_is_not_the_callers_fault(
    start_group, start_frontend, token_file, tmp_path
) -> None:
    tokens_file = write_tokens(tmp_path / "tokens.json", entry("a", "frontend-token"))
    group = await start_group(tokens_file=tokens_file)
    client = await start_frontend(group, insecure=True, group_token_file=token_file)
    token_file.write_text("wrong-token")
    (connection,) = client.frontend.groups

    async def refused_as() -> str:
        try:
            await client.generate()
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name} {from_call(error).reason}"
        return "OK"

    async def refused() -> bool:
        return await refused_as() != "OK"

    await eventually(refused)
    assert await refused_as() == "UNAVAILABLE GROUP_LOST"
    assert connection.ready  # its status stream was let in before


async def test_a_new_authority_is_believed_once_the_old_connection_broke(start_group, start_frontend, tmp_path) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    believed = tmp_path / "believed.pem"
    believed.write_bytes(old.file.read_bytes())
    pair = old.issue()
    group = await start_group(tls_cert_file=pair.cert_file, tls_key_file=pair.key_file)
    client = await start_frontend(group, group_tls_ca_file=believed, group_silent_seconds=0.5)
    port = int(group.address.rpartition(":")[2])
    (connection,) = client.frontend.groups
    await group.stop()
    await eventually(lambda: connection.availability is Availability.GONE)
    believed.write_bytes(new.file.read_bytes())
    pair = new.issue()
    await start_group(port=port, tls_cert_file=pair.cert_file, tls_key_file=pair.key_file)
    await eventually(lambda: connection.availability is Availability.READY)
    await client.generate()


@pytest.mark.parametrize("content", [b"", b" \n", b"two\ntokens", b"\xff\xfe"])
def test_a_token_file_without_one_token_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(FileRefused, match="must hold a token"):
        read_token(file)
