"""The files of a checkpoint, checked and read without reading a tensor: configurations and safetensors headers."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from workers.errors import ModelRefused

HEADER_LENGTH_BYTES = 8
"""A safetensors file starts with its header's length: https://huggingface.co/docs/safetensors#format."""


@dataclass(frozen=True)
class Config:
    """A configuration file in JSON."""

    file: Path
    values: Mapping[str, Any]

    @classmethod
    def read(cls, file: Path) -> Config:
        """Read `file`.

        Raises:
            ModelRefused: if the file is missing, or holds no JSON object.
        """
        return cls(file, _parse_object(file, _read_bytes(file)))

    def value(self, *keys: str) -> Any:
        """Return the value under nested `keys`; ModelRefused where there is none."""
        value: Any = self.values
        for key in keys:
            if not isinstance(value, dict) or key not in value:
                raise ModelRefused(f"{self.file}: key {'.'.join(keys)} is missing")
            value = value[key]
        return value

    def integer(self, *keys: str) -> int:
        """Return the whole number, 1 or more, under nested `keys`; ModelRefused where there is none."""
        value = self.value(*keys)
        if type(value) is not int or value < 1:
            raise ModelRefused(f"{self.file}: key {'.'.join(keys)} must be a whole number above 0")
        return value

    def length(self, *keys: str) -> int:
        """Return the length of the list under nested `keys`; ModelRefused where there is none."""
        value = self.value(*keys)
        if not isinstance(value, list):
            raise ModelRefused(f"{self.file}: key {'.'.join(keys)} must be a list")
        return len(value)


def verify_weights(folder: Path, stem: str) -> None:
    """Check that the weights in `folder` are there and whole: `stem`.safetensors, or all shards that its index names.

    Raises:
        ModelRefused: if a file is missing, truncated, damaged or pickled; the message names it.
    """
    single = folder / f"{stem}.safetensors"
    index = folder / f"{stem}.safetensors.index.json"
    if not single.is_file() and not index.is_file():
        pickled = sorted(folder.glob("*.bin"))
        if pickled:
            raise ModelRefused(
                f"{pickled[0]}: pickled weights can run code when they load; convert them to {single.name}"
            )
        raise ModelRefused(f"{single}: the weights are missing; download the checkpoint again")
    if single.is_file():
        _tensor_names(single)
    if index.is_file():
        _verify_shards(Config.read(index))


def _verify_shards(index: Config) -> None:
    shards: dict[str, set[str]] = {}
    weight_map = index.value("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise ModelRefused(f"{index.file}: weight_map must map tensors to files")
    for tensor, shard in weight_map.items():
        shards.setdefault(shard, set()).add(tensor)
    for shard, tensors in sorted(shards.items()):
        file = index.file.parent / shard
        if not file.is_file():
            raise ModelRefused(f"{file}: missing, but named in {index.file.name}; download the checkpoint again")
        absent = tensors - _tensor_names(file)
        if absent:
            raise ModelRefused(f"{file}: tensor {min(absent)} is missing, but {index.file.name} says it is there")


def _tensor_names(file: Path) -> set[str]:
    """Return the names of the tensors in a safetensors file, once its size is what its header tells."""
    try:
        size_bytes = file.stat().st_size
        with file.open("rb") as opened:
            header, header_end = _read_header(file, opened, size_bytes)
    except OSError as error:
        raise ModelRefused(f"{file}: {error.strerror}") from error
    header.pop("__metadata__", None)
    try:
        end = header_end + max((int(tensor["data_offsets"][1]) for tensor in header.values()), default=0)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ModelRefused(f"{file}: damaged header; download it again") from error
    if size_bytes < end:
        raise _truncated(file, size_bytes, end)
    if size_bytes > end:
        raise ModelRefused(f"{file}: {size_bytes} bytes, but its header tells of {end}; download it again")
    return set(header)


def _read_header(file: Path, opened: BinaryIO, size_bytes: int) -> tuple[dict[str, Any], int]:
    """Return the header, and the position in bytes where it ends and the tensors start."""
    prefix = opened.read(HEADER_LENGTH_BYTES)
    if len(prefix) < HEADER_LENGTH_BYTES:
        raise _truncated(file, size_bytes, HEADER_LENGTH_BYTES)
    header_bytes: int = struct.unpack("<Q", prefix)[0]
    header_end = HEADER_LENGTH_BYTES + header_bytes
    if header_end > size_bytes:
        raise _truncated(file, size_bytes, header_end)
    return _parse_object(file, opened.read(header_bytes)), header_end


def _truncated(file: Path, size_bytes: int, needed_bytes: int) -> ModelRefused:
    return ModelRefused(f"{file}: truncated, {size_bytes} bytes of at least {needed_bytes}; download it again")


def _read_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ModelRefused(f"{file}: {error.strerror}") from error


def _parse_object(file: Path, text: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise ModelRefused(f"{file}: damaged, no JSON where JSON belongs; download it again") from error
    if not isinstance(parsed, dict):
        raise ModelRefused(f"{file}: a JSON object is expected")
    return parsed
