"""What batching brings: images a second of a group, one caller against several at once.

python -m benchmarks.batching [--model FILE] [--ranks N] [--device cpu|tpu|cuda] [--images N] [--callers N]

Without --model the tiny FLUX.2 is served. Prints images a second, and their ratio to one caller.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.groups import request, serving
from pixelpod.v1 import group_pb2_grpc
from workers.model_file import FamilyName, ModelFile, load_model_file
from workers.tiny_checkpoints import write_tiny_checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=["cpu", "tpu", "cuda"])
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--callers", type=int, default=8)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = arguments.model or write_tiny_checkpoint(FamilyName.FLUX2, Path(folder))
        model = load_model_file(file)
        with serving(file, arguments.ranks, arguments.device) as stub:
            _images_a_second(stub, model, arguments.callers, arguments.callers)  # fills caches
            alone = _images_a_second(stub, model, arguments.images, callers=1)
            together = _images_a_second(stub, model, arguments.images, arguments.callers)
    print(f"{model.name}, {arguments.ranks} ranks on {arguments.device}, {arguments.images} images")
    print(f"1 caller    {alone:6.2f} images/s")
    print(f"{arguments.callers} callers   {together:6.2f} images/s   {together / alone:5.2f} x one caller")


def _images_a_second(stub: group_pb2_grpc.WorkerGroupStub, model: ModelFile, images: int, callers: int) -> float:
    defaults = model.defaults

    def ask(seed: int) -> None:
        message = request(
            model.name,
            prompt=f"animal number {seed}",
            seeds=[seed],
            steps=defaults.steps,
            max_sequence_length=defaults.max_sequence_length,
            guidance_scale=defaults.guidance_scale,
        )
        for _ in stub.ExecuteStream(message, timeout=600):
            pass

    started = time.monotonic()
    with ThreadPoolExecutor(callers) as pool:
        list(pool.map(ask, range(images)))
    return images / (time.monotonic() - started)


if __name__ == "__main__":
    main()
