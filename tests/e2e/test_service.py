"""The whole path as a user has it: command line and client, frontend, a group of two ranks."""

from __future__ import annotations

import io
import json
import subprocess
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from pixelpod.client import Client, InvalidRequestError
from pixelpod.exit_codes import ExitCode
from tests.e2e.processes import start
from tests.e2e.services import PIXELPOD, Service, serving
from workers.model_file import FamilyName
from workers.tiny_checkpoints import write_tiny_checkpoint

SECRET = "violet-heron"
SECONDS = 60.0


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(FamilyName.FLUX2, tmp_path_factory.mktemp("flux2"))


@pytest.fixture(scope="module")
def service(model_file: Path) -> Iterator[Service]:
    with serving(model_file, ranks=2) as service:
        yield service


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[Client]:
    with service.client() as client:
        yield client


def test_command_line_writes_an_image_and_tells_how(service: Service, tmp_path: Path) -> None:
    output = tmp_path / "fox.png"
    command = [*PIXELPOD, "generate", "a red fox", "-o", str(output), "--seed", "7", "--server", service.address]
    ended = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=SECONDS)
    assert ended.returncode == ExitCode.OK, ended.stderr
    assert Image.open(output).size == (64, 64)
    told = json.loads(ended.stdout)
    assert told["parameters"]["seeds"] == [7]
    assert (told["model"], told["revision"], told["group"]) == ("tiny-flux2", "random-0", "tiny-flux2")
    assert told["timings"]["compile_seconds"] == 0
    assert 0 < told["timings"]["denoise_seconds"] < told["timings"]["total_seconds"]


def test_second_process_on_a_port_says_so(service: Service) -> None:
    command = [*PIXELPOD, "serve", "--group", "127.0.0.1:1", "--listen", service.address, "--metrics", "none"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert ended.returncode == ExitCode.ADDRESS_IN_USE
    assert service.address in ended.stderr


def test_four_images_have_four_seeds_and_each_alone_is_the_same(client: Client) -> None:
    together = client.generate("a red fox", num_images=4, seed=2**64 - 2, deadline_seconds=SECONDS)
    assert together.parameters.seeds == (2**64 - 2, 2**64 - 1, 0, 1)
    assert [image.seed for image in together.images] == list(together.parameters.seeds)
    assert len({image.sha256 for image in together.images}) == 4
    for image in together.images:
        # Another batch size is another order of sums: the last digits of a float, not of a pixel by more than one.
        alone = client.generate("a red fox", seed=image.seed, deadline_seconds=SECONDS).images[0]
        assert _difference(alone.data, image.data) <= 1


def test_without_a_seed_every_image_is_another(client: Client) -> None:
    results = [client.generate("a red fox", deadline_seconds=SECONDS) for _ in range(3)]
    assert len({result.images[0].sha256 for result in results}) == 3
    assert len({result.parameters.seeds for result in results}) == 3
    for result in results:
        again = client.generate("a red fox", seed=result.images[0].seed, deadline_seconds=SECONDS)
        assert Image.open(io.BytesIO(again.images[0].data)).tobytes() == _tobytes(result.images[0].data)


def test_concurrent_requests_equal_their_solo_runs(client: Client) -> None:
    """Schedulers and tokenizers hold state; requests must not share it. Larger batches round otherwise, by 1 of 255."""
    wishes = [(f"animal number {number}", number, 4 + number % 5) for number in range(8)]

    def image(wish: tuple[str, int, int]) -> bytes:
        prompt, seed, steps = wish
        return client.generate(prompt, seed=seed, steps=steps, deadline_seconds=SECONDS).images[0].data

    alone = [image(wish) for wish in wishes]
    with ThreadPoolExecutor(len(wishes)) as pool:
        together = list(pool.map(image, wishes))
    assert all(_difference(one, other) <= 1 for one, other in zip(together, alone, strict=True))


def test_prompt_round_trips_through_the_file_and_nowhere_else(client: Client, service: Service) -> None:
    prompt = f"{SECRET} 灯台 🦊\nin the rain"
    result = client.generate(prompt, deadline_seconds=SECONDS)
    assert Image.open(io.BytesIO(result.images[0].data)).text["prompt"] == prompt
    with pytest.raises(InvalidRequestError) as refused:
        client.generate(prompt, steps=1000, deadline_seconds=SECONDS)
    assert refused.value.field == "steps"
    client.generate(f"{SECRET} " * 100, deadline_seconds=SECONDS)
    assert SECRET not in service.log
    assert SECRET not in str(refused.value)
    assert SECRET not in _metrics_text(service)


def test_every_left_out_parameter_is_told(client: Client) -> None:
    parameters = client.generate("a red fox", deadline_seconds=SECONDS).parameters
    assert (parameters.width, parameters.height, parameters.num_images, parameters.steps) == (64, 64, 1, 4)
    assert (parameters.guidance_scale, parameters.max_sequence_length) == (4.0, 128)
    assert (parameters.output_format, parameters.size_policy, parameters.priority) == ("PNG", "EXACT", "NORMAL")
    assert len(parameters.seeds) == 1


def test_models_are_listed_warm(client: Client) -> None:
    (model,) = client.models(deadline_seconds=SECONDS)
    assert (model.name, model.family, model.ready_groups) == ("tiny-flux2", "flux2", 1)
    assert [(bucket.width, bucket.height, bucket.warm) for bucket in model.buckets] == [(64, 64, True), (96, 64, True)]


def test_gauges_are_zero_when_nothing_runs(client: Client, service: Service) -> None:
    client.generate("a red fox", deadline_seconds=SECONDS)
    samples = {
        (sample.name, sample.labels.get("code")): sample.value
        for family in text_string_to_metric_families(_metrics_text(service))
        for sample in family.samples
    }
    assert samples["pixelpod_frontend_in_flight", None] == 0
    assert samples["pixelpod_frontend_requests_total", "OK"] >= 1


def test_one_command_from_nothing_to_an_image(model_file: Path, tmp_path: Path) -> None:
    """What `make run` does after installing."""
    output = tmp_path / "image.png"
    command = (
        *(*PIXELPOD, "dev", "--model", str(model_file), "--listen", "127.0.0.1:0", "--metrics", "none"),
        *("--prompt", "a red fox", "--output", str(output)),
    )
    with start(command) as process:
        assert process.wait(90) == ExitCode.OK, process.log
        assert process.children() == []
    assert Image.open(output).size == (64, 64)


def _metrics_text(service: Service) -> str:
    with urllib.request.urlopen(f"http://{service.metrics_address}/metrics", timeout=5) as answer:
        text: str = answer.read().decode()
    return text


def _tobytes(image_file: bytes) -> bytes:
    return Image.open(io.BytesIO(image_file)).tobytes()


def _difference(first: bytes, second: bytes) -> int:
    """Return the largest difference of two images' pixels, in levels of 255."""
    return max(abs(a - b) for a, b in zip(_tobytes(first), _tobytes(second), strict=True))
