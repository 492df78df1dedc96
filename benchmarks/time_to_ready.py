"""What a compile cache saves: seconds from the start of a group to READY, without one, with an empty one, with its own.

python -m benchmarks.time_to_ready [--device cpu|tpu|cuda] [--model FILE] [--family flux|flux2|sd3] [--rounds N]

Without --model the tiny model of the family is served, compiled. Prints the medians and their ratios to no cache.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import yaml

from benchmarks.groups import serving
from workers.model_file import FamilyName
from workers.tiny_checkpoints import write_tiny_checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="tpu", choices=["cpu", "tpu", "cuda"])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--family", default="flux2", choices=[str(name) for name in FamilyName])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = arguments.model or _compiled_model(FamilyName(arguments.family), folder)
        seconds: dict[str, list[float]] = {"no cache": [], "empty cache": [], "warm cache": []}
        for number in range(arguments.rounds):
            cache = folder / f"cache-{number}"
            for state, option in (("no cache", None), ("empty cache", cache), ("warm cache", cache)):
                seconds[state].append(_seconds_to_ready(model, arguments.device, option, folder / "torch"))
    baseline = statistics.median(seconds["no cache"])
    print(f"{model if arguments.model else arguments.family} on {arguments.device}, medians of {arguments.rounds}")
    for state, measured in seconds.items():
        median = statistics.median(measured)
        print(f"{state:12} {median:7.1f} s   {median / baseline:5.2f} x no cache")


def _compiled_model(family: FamilyName, folder: Path) -> Path:
    file = write_tiny_checkpoint(family, folder / "model")
    document = yaml.safe_load(file.read_text()) | {"execution": "compiled", "placement": "single"}
    file.write_text(yaml.safe_dump(document))
    return file


def _seconds_to_ready(model: Path, device: str, cache: Path | None, torch_cache: Path) -> float:
    """Start a group, wait until it serves, and stop it. Without `cache` torch finds no graphs of earlier starts."""
    environment, options = dict(os.environ), []
    if cache is None:
        environment["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(dir=_made(torch_cache))
    else:
        options = ["--cache-dir", str(cache)]
    started = time.monotonic()
    with serving(model, 1, device, options, environment):
        return time.monotonic() - started


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


if __name__ == "__main__":
    main()
