"""What a caller gets: images, and all that is known of how they were made."""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pixelpod.client.messages import enum_name, from_message
from pixelpod.v1 import images_pb2

if TYPE_CHECKING:
    import PIL.Image


@dataclass(frozen=True)
class GeneratedImage:
    """One encoded image file."""

    data: bytes = field(repr=False)
    """The file's bytes; they match `sha256`."""
    media_type: str
    """"image/png", "image/jpeg" or "image/webp"."""
    width: int
    """Pixels."""
    height: int
    """Pixels."""
    seed: int
    """The seed that makes this image again, alone, with num_images 1."""
    index: int
    """Position in the request, from 0."""
    sha256: str
    """SHA-256 of `data`, 64 lower-case hexadecimal digits."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file. It appears whole under its name or not at all, and replaces an older one.

        Raises:
            OSError: if it can't be written.
        """
        target = Path(path).resolve()
        if target.exists() and not target.is_file():
            # A device or a pipe is written to; renaming onto it would replace it.
            target.write_bytes(self.data)
            return
        draft = target.with_name(f".{uuid.uuid4().hex}.part")
        try:
            draft.write_bytes(self.data)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)

    def pil(self) -> PIL.Image.Image:
        """Return the image, decoded, as a Pillow image.

        Raises:
            ImportError: without Pillow.
        """
        try:
            import PIL.Image
        except ImportError as error:
            raise ImportError("pil() needs Pillow: pip install pixelpod[pil]") from error
        return PIL.Image.open(io.BytesIO(self.data))


@dataclass(frozen=True)
class ResolvedParameters:
    """The request after defaults: every value as it was used."""

    width: int
    """Pixels."""
    height: int
    """Pixels."""
    num_images: int
    """Number of images."""
    steps: int
    """Denoising steps."""
    guidance_scale: float
    """How strongly the prompt steers."""
    max_sequence_length: int
    """Tokens that the long text encoder reads."""
    seeds: tuple[int, ...]
    """One per image, in the order of the images."""
    output_format: str
    """"PNG", "JPEG" or "WEBP"."""
    quality: int
    """1 to 100 for JPEG and WEBP, 0 for PNG."""
    size_policy: str
    """"EXACT" or "NEAREST"."""
    priority: str
    """"LOW", "NORMAL" or "HIGH"."""
    negative_prompt: str | None
    """None when the model was given none."""


@dataclass(frozen=True)
class GenerationWarning:
    """Something in the request that was not followed to the letter."""

    code: str
    """The kind, for example "PROMPT_TRUNCATED"."""
    field: str
    """The request field it is about."""
    message: str
    """One sentence for a person."""


@dataclass(frozen=True)
class Timings:
    """Where the time went. Stages shared with batch mates count in full."""

    queue_seconds: float
    """From arrival at the frontend until a group began to compute."""
    encode_seconds: float
    """Text encoders."""
    denoise_seconds: float
    """The denoising loop."""
    decode_seconds: float
    """VAE decoder."""
    image_encode_seconds: float
    """Encoding to the output format."""
    compile_seconds: float
    """Compile time within the stages above."""
    total_seconds: float
    """From arrival at the frontend until the closing message."""


@dataclass(frozen=True)
class Generation:
    """A request that succeeded."""

    request_id: str
    """Names the request in the servers' logs."""
    images: tuple[GeneratedImage, ...]
    """In the order of their indices."""
    parameters: ResolvedParameters
    """Every parameter as it was used."""
    warnings: tuple[GenerationWarning, ...]
    """What was changed, cut or ignored."""
    timings: Timings
    """Where the time went."""
    model: str
    """The model that answered."""
    revision: str
    """The model's revision."""
    group: str
    """The group that computed the images."""
    epoch: int
    """The incarnation of that group."""
    message: images_pb2.GenerateResponse = field(repr=False, compare=False)
    """The closing message as it came, without the images' data."""


def generation_from(message: images_pb2.GenerateResponse, files: Sequence[bytes]) -> Generation:
    """Return the result that a closing message and the images' files, in order, make."""
    images = tuple(
        from_message(GeneratedImage, image, data=data) for image, data in zip(message.images, files, strict=True)
    )
    return from_message(
        Generation,
        message,
        images=images,
        parameters=_parameters_from(message.parameters),
        warnings=tuple(_warning_from(warning) for warning in message.warnings),
        timings=from_message(Timings, message.timings),
        message=message,
    )


def _parameters_from(message: images_pb2.ResolvedParameters) -> ResolvedParameters:
    return from_message(
        ResolvedParameters,
        message,
        seeds=tuple(message.seeds),
        output_format=enum_name(message, "output_format"),
        size_policy=enum_name(message, "size_policy"),
        priority=enum_name(message, "priority"),
        negative_prompt=message.negative_prompt if message.HasField("negative_prompt") else None,
    )


def _warning_from(message: images_pb2.Warning) -> GenerationWarning:
    return from_message(GenerationWarning, message, code=enum_name(message, "code"))
