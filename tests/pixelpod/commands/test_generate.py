"""`pixelpod generate` against a real gRPC server with scripted answers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pixelpod.server import errors
from pixelpod.v1 import images_pb2
from tests.pixelpod.commands.conftest import Run
from tests.pixelpod.stub_server import StubServer, answer, fail, hang

FILES = [b"image zero", b"image one", b"image two"]


@pytest.fixture
def output(tmp_path: Path) -> str:
    return str(tmp_path / "fox.png")


def test_writes_the_image_and_tells_about_it(server: StubServer, run: Run, output: str) -> None:
    ended = run("generate", "a red fox", "-o", output, "--server", server.address, "--seed", "7")
    assert ended.exit_code == 0
    assert Path(output).read_bytes() == b"an image"
    assert f"{output}  64x64  seed 7\n" in ended.text
    assert "tiny random-0, group tiny-a" in ended.text
    stages = {cells[1].strip(): cells[2].strip() for cells in map(_cells, ended.text.splitlines()) if len(cells) > 2}
    assert stages["queue"] == "0.250"
    assert stages["denoise"] == "0.500"
    assert stages["total"] == "1.000"


def _cells(line: str) -> list[str]:
    return line.replace("┃", "│").split("│")


def test_warnings_are_visible_and_taken_literally(server: StubServer, run: Run, output: str) -> None:
    ended = run("generate", "a red fox", "-o", output, "--server", server.address)
    assert ended.stderr == "warning: guidance_scale: [it] was ignored\n"


def test_several_images_are_numbered(server: StubServer, run: Run, tmp_path: Path) -> None:
    server.script = answer(FILES)
    ended = run("generate", "a red fox", "-o", str(tmp_path / "fox.v1.png"), "--server", server.address)
    assert ended.exit_code == 0
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {
        "fox.v1-0.png": FILES[0],
        "fox.v1-1.png": FILES[1],
        "fox.v1-2.png": FILES[2],
    }


def test_dash_writes_only_the_image_to_stdout(server: StubServer, run: Run) -> None:
    ended = run("generate", "a red fox", "-o", "-", "--server", server.address, "--seed", "7")
    assert ended.stdout == b"an image"
    assert "-  64x64  seed 7" in ended.stderr


def test_every_parameter_reaches_the_server(server: StubServer, run: Run, output: str) -> None:
    run(
        *("generate", "a red fox", "-o", output, "--server", server.address, "--model", "tiny"),
        *("--negative-prompt", "blur", "--size", "64x96", "--nearest-size", "--num-images", "2", "--steps", "9"),
        *("--guidance-scale", "2.5", "--seed", str(2**64 - 1), "--max-sequence-length", "32", "--format", "webp"),
        *("--quality", "80", "--priority", "high", "--request-id", "r-1"),
    )
    assert server.requests == [
        images_pb2.GenerateRequest(
            prompt="a red fox",
            model="tiny",
            negative_prompt="blur",
            width=64,
            height=96,
            size_policy=images_pb2.SIZE_POLICY_NEAREST,
            num_images=2,
            steps=9,
            guidance_scale=2.5,
            seed=2**64 - 1,
            max_sequence_length=32,
            output_format=images_pb2.OUTPUT_FORMAT_WEBP,
            quality=80,
            priority=images_pb2.PRIORITY_HIGH,
            request_id="r-1",
        )
    ]


def test_what_is_left_out_is_not_sent(server: StubServer, run: Run, tmp_path: Path) -> None:
    run("generate", "a red fox", "-o", str(tmp_path / "fox"), "--server", server.address)
    assert {field.name for field, _ in server.requests[0].ListFields()} == {"request_id", "prompt"}


def test_values_that_only_the_server_can_judge_reach_it(server: StubServer, run: Run, output: str) -> None:
    run(
        *("generate", "", "-o", output, "--server", server.address, "--width", "-16", "--height", "0"),
        *("--steps", "-1", "--guidance-scale", "nan", "--num-images", "0"),
    )
    (request,) = server.requests
    assert (request.width, request.height, request.steps, request.num_images) == (-16, 0, -1, 0)
    assert math.isnan(request.guidance_scale)


@pytest.mark.parametrize(
    ("name", "wire"), [("a.png", 1), ("a.PNG", 1), ("a.jpg", 2), ("a.jpeg", 2), ("a.webp", 3), ("a", 0)]
)
def test_format_by_the_ending(server: StubServer, run: Run, tmp_path: Path, name: str, wire: int) -> None:
    run("generate", "a red fox", "-o", str(tmp_path / name), "--server", server.address)
    assert server.requests[0].output_format == wire


def test_format_goes_before_the_ending(server: StubServer, run: Run, tmp_path: Path) -> None:
    run("generate", "a red fox", "-o", str(tmp_path / "a.gif"), "--format", "JPEG", "--server", server.address)
    assert server.requests[0].output_format == images_pb2.OUTPUT_FORMAT_JPEG


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["-o", "{folder}/fox.gif"], ".gif is none of .png, .jpg, .jpeg, .webp"),
        (["-o", "{folder}/none/fox.png"], "there is no folder {folder}/none"),
        (["-o", "{folder}"], "{folder} is a folder"),
        (["-o", "-", "--json"], "can't both go to stdout"),
        (["-o", "{folder}/fox.png", "--size", "64"], "'64' is no size such as 1024x768"),
        (["-o", "{folder}/fox.png", "--size", "64x64", "--width", "64"], "say --size, or --width and --height"),
        (["-o", "{folder}/fox.png", "--steps", "four"], "--steps"),
        (["-o", "{folder}/fox.png", "--format", "gif"], "--format"),
        ([], "--output"),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_sent(
    server: StubServer, run: Run, tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    filled = [argument.format(folder=tmp_path) for argument in arguments]
    ended = run("generate", "a red fox", "--server", server.address, *filled)
    assert ended.exit_code == 2
    message = ended.json["error"]["message"] if "--json" in arguments else ended.stderr
    assert complaint.format(folder=tmp_path) in message
    assert server.requests == []


@pytest.mark.parametrize(
    ("error", "exit_code", "line"),
    [
        (errors.InvalidRequest("steps", "steps is -1;\nat least 1"), 2, "error: steps is -1; at least 1\n"),
        (errors.UnknownModel("no model 'x'; there is 'tiny'"), 2, "error: no model 'x'; there is 'tiny'\n"),
        (
            errors.Overloaded("the queue is full", reason="QUEUE_FULL", retry_after_seconds=2.5),
            4,
            "error: the queue is full (try again in 2.5 s)\n",
        ),
        (errors.ComputationFailed("not finite", reason="NOT_FINITE"), 1, "error: not finite\n"),
    ],
    ids=["invalid", "unknown model", "overloaded", "failed"],
)
def test_refusals_are_one_line(
    server: StubServer, run: Run, output: str, error: errors.RequestError, exit_code: int, line: str
) -> None:
    server.script = fail(error)
    ended = run("generate", "a red fox", "-o", output, "--server", server.address, "--steps", "-1")
    assert (ended.exit_code, ended.stdout, ended.stderr) == (exit_code, b"", line)
    assert not Path(output).exists()


def test_value_that_fits_no_field(server: StubServer, run: Run, output: str) -> None:
    ended = run("generate", "a red fox", "-o", output, "--server", server.address, "--seed", "-1")
    assert (ended.exit_code, ended.stderr) == (2, "error: seed takes a whole number from 0 to 2^64 - 1\n")


def test_deadline(server: StubServer, run: Run, output: str) -> None:
    server.script = hang()
    ended = run("generate", "a red fox", "-o", output, "--server", server.address, "--deadline", "0.3")
    assert ended.exit_code == 4
    assert server.address in ended.stderr


def test_file_that_cannot_be_written(
    server: StubServer, run: Run, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", no_space)
    ended = run("generate", "a red fox", "-o", output, "--server", server.address)
    assert (ended.exit_code, ended.stderr) == (1, f"error: cannot write {output}: No space left on device\n")


def test_json(server: StubServer, run: Run, tmp_path: Path) -> None:
    server.script = answer(FILES[:2])
    path = str(tmp_path / "fox.png")
    ended = run("generate", "a red fox", "-o", path, "--server", server.address, "--request-id", "r-1", "--json")
    assert (ended.exit_code, ended.stderr) == (0, "")
    result = ended.json
    assert [(image["path"], image["seed"], image["size_bytes"]) for image in result["images"]] == [
        (str(tmp_path / "fox-0.png"), 0, 10),
        (str(tmp_path / "fox-1.png"), 1, 9),
    ]
    assert result["parameters"]["seeds"] == [0, 1]
    assert result["timings"]["total_seconds"] == 1.0
    assert result["warnings"][0]["code"] == "GUIDANCE_IGNORED"
    assert {name: result[name] for name in ("request_id", "model", "revision", "group", "epoch")} == {
        "request_id": "r-1",
        "model": "tiny",
        "revision": "random-0",
        "group": "tiny-a",
        "epoch": 7,
    }


def test_json_errors(server: StubServer, run: Run, output: str) -> None:
    server.script = fail(errors.InvalidRequest("steps", "steps is -1; at least 1"))
    ended = run("generate", "a red fox", "-o", output, "--server", server.address, "--json")
    assert (ended.exit_code, ended.stderr) == (2, "")
    assert ended.json == {
        "error": {
            "message": "steps is -1; at least 1",
            "exit_code": 2,
            "code": "INVALID_ARGUMENT",
            "reason": "INVALID_PARAMETER",
            "field": "steps",
            "retry_after_seconds": None,
        }
    }


def test_server_from_the_environment(
    server: StubServer, run: Run, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIXELPOD_SERVER", server.address)
    assert run("generate", "a red fox", "-o", output).exit_code == 0
