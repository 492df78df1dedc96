"""`pixelpod models` against a real gRPC server."""

from __future__ import annotations

from pixelpod.v1 import images_pb2
from tests.pixelpod.commands.conftest import Run
from tests.pixelpod.stub_server import StubServer, model


def test_table(server: StubServer, run: Run) -> None:
    server.models = lambda: images_pb2.ListModelsResponse(models=[model("tiny-a"), model("tiny-b")])
    ended = run("models", "--server", server.address)
    assert ended.exit_code == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in ended.text.splitlines()]
    first = next(row for row in rows if row and row[0] == "tiny-a")
    assert first[1:] == [
        *("random-0", "flux2", "2", "64x64", "1 to 4", "1 to 50", "0 to 20", "32, 64"),
        "64x64, 4 steps, guidance 3.5",
    ]
    assert ["", "", "", "", "96x64 (cold)", "", "", "", "", ""] in rows
    assert any(row and row[0] == "tiny-b" for row in rows)


def test_json(server: StubServer, run: Run) -> None:
    server.models = lambda: images_pb2.ListModelsResponse(models=[model()])
    (tiny,) = run("models", "--server", server.address, "--json").json["models"]
    assert (tiny["name"], tiny["family"], tiny["ready_groups"]) == ("tiny", "flux2", 2)
    assert tiny["buckets"][0] == {
        "width": 64,
        "height": 64,
        "batch_sizes": [1, 2, 4],
        "warm": True,
        "measured_seconds": 0.5,
        "step_seconds": 0.0,
    }
    assert tiny["limits"]["max_sequence_length"] == {"minimum": 32, "maximum": 64, "choices": [32, 64]}
    assert tiny["defaults"]["output_format"] == "PNG"


def test_nobody_listens(run: Run) -> None:
    with StubServer() as server:
        address = server.address
    ended = run("models", "--server", address)
    assert ended.exit_code == 4
    assert ended.stderr.startswith(f"error: {address}: failed to connect")
    assert ended.stderr.count("\n") == 1
