"""What a caller may ask for, and the request message made from it."""

from __future__ import annotations

import dataclasses
import uuid
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack

import grpc
from google.protobuf.descriptor import FieldDescriptor

from pixelpod.client.errors import InvalidRequestError
from pixelpod.client.messages import enum_names
from pixelpod.v1 import images_pb2

OutputFormat = Literal["PNG", "JPEG", "WEBP"]
SizePolicy = Literal["EXACT", "NEAREST"]
Priority = Literal["LOW", "NORMAL", "HIGH"]

_ACCEPTED: dict[int, str] = {
    FieldDescriptor.TYPE_STRING: "text that can be written as UTF-8",
    FieldDescriptor.TYPE_INT32: "a whole number from -2^31 to 2^31 - 1",
    FieldDescriptor.TYPE_UINT64: "a whole number from 0 to 2^64 - 1",
    FieldDescriptor.TYPE_DOUBLE: "a number",
}
"""What a field of each wire type can hold, for messages."""


class GenerateParameters(TypedDict, total=False):
    """The fields of `GenerateOptions` besides the prompt, as keyword arguments."""

    model: str | None
    negative_prompt: str | None
    width: int | None
    height: int | None
    num_images: int | None
    steps: int | None
    guidance_scale: float | None
    seed: int | None
    max_sequence_length: int | None
    output_format: OutputFormat | None
    quality: int | None
    size_policy: SizePolicy | None
    priority: Priority | None
    request_id: str | None


@dataclass(frozen=True)
class GenerateOptions:
    """What to draw, and how. What is None is left to the server's defaults; the result tells every value used.

    The limits are the server's; `models()` tells them.
    """

    prompt: str
    """What to draw."""
    model: str | None = None
    """Which model; may be left out where one is served."""
    negative_prompt: str | None = None
    """What to avoid, for models that use it."""
    width: int | None = None
    """Pixels; set both width and height or neither."""
    height: int | None = None
    """Pixels."""
    num_images: int | None = None
    """How many images, each with a seed of its own."""
    steps: int | None = None
    """Denoising steps."""
    guidance_scale: float | None = None
    """How strongly the prompt steers."""
    seed: int | None = None
    """Seed of the first image, 0 to 2^64 - 1; image i gets seed + i. Drawn at random by the server when None."""
    max_sequence_length: int | None = None
    """Tokens that the long text encoder reads."""
    output_format: OutputFormat | None = None
    """File format of the images."""
    quality: int | None = None
    """1 to 100, for JPEG and WEBP."""
    size_policy: SizePolicy | None = None
    """What to do with a size that is not served: refuse (EXACT) or take the nearest."""
    priority: Priority | None = None
    """Order among waiting requests."""
    request_id: str | None = None
    """Names the request in answers and logs. Drawn at random by the client when None."""


def with_parameters(prompt: str | GenerateOptions, **parameters: Unpack[GenerateParameters]) -> GenerateOptions:
    """Return the options for `prompt`, or those of given options with `parameters` in place of theirs."""
    if isinstance(prompt, GenerateOptions):
        return dataclasses.replace(prompt, **parameters)
    return GenerateOptions(prompt, **parameters)


def build_request(options: GenerateOptions) -> images_pb2.GenerateRequest:
    """Return the request message. It holds no field that `options` leaves out.

    The request id is drawn here, so that all of gRPC's retries of a call carry the same.

    Raises:
        InvalidRequestError: if a value does not fit its field in the contract. Limits are the server's to check.
    """
    request = images_pb2.GenerateRequest(request_id=uuid.uuid4().hex)
    for name, value in vars(options).items():
        if value is not None:
            _set(request, name, value)
    return request


def _set(request: images_pb2.GenerateRequest, name: str, value: object) -> None:
    numbers = {key: number for number, key in enum_names(request, name).items()}
    try:
        setattr(request, name, numbers.get(value, value) if isinstance(value, str) else value)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(
            f"{name} takes {_accepted(request, name)}",
            code=grpc.StatusCode.INVALID_ARGUMENT,
            reason="INVALID_PARAMETER",
            field=name,
        ) from error


def _accepted(request: images_pb2.GenerateRequest, name: str) -> str:
    """Return what a field can hold, for a person."""
    names = [key for number, key in enum_names(request, name).items() if number]
    return f"one of {', '.join(names)}" if names else _ACCEPTED[request.DESCRIPTOR.fields_by_name[name].type]
