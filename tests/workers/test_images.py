"""Images survive their files: pixels, text and checksum."""

from __future__ import annotations

import hashlib
import io
import threading
import time

import numpy as np
import pytest
from PIL import Image

from pixelpod.v1 import images_pb2
from workers.images import EncodedImage, encode_image

PNG = images_pb2.OUTPUT_FORMAT_PNG
JPEG = images_pb2.OUTPUT_FORMAT_JPEG
WEBP = images_pb2.OUTPUT_FORMAT_WEBP

TEXT = {"prompt": "一只猫 🐈‍⬛ on a\nroof, «naïve»\t", "seed": "18446744073709551615", "negative_prompt": ""}


def noise(width: int, height: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def smooth(width: int, height: int) -> np.ndarray:
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x % 256, y % 256, (x + y) // 2 % 256], axis=-1).astype(np.uint8)


def opened(image: EncodedImage) -> Image.Image:
    return Image.open(io.BytesIO(image.data))


def test_png_keeps_every_pixel() -> None:
    for pixels in (noise(96, 64), smooth(96, 64)):
        assert np.array_equal(np.asarray(opened(encode_image(pixels, PNG, 0, {}))), pixels)


def test_png_keeps_any_text_exactly() -> None:
    image = opened(encode_image(noise(16, 16), PNG, 0, TEXT))
    assert image.info == TEXT


def test_png_text_is_stored_as_utf8() -> None:
    data = encode_image(noise(16, 16), PNG, 0, TEXT).data
    assert b"iTXtprompt" in data
    assert TEXT["prompt"].encode() in data


@pytest.mark.parametrize("output_format", [JPEG, WEBP])
def test_lossy_files_are_near_and_hold_no_text(output_format: images_pb2.OutputFormat.ValueType) -> None:
    pixels = smooth(96, 64)
    image = encode_image(pixels, output_format, 90, TEXT)
    decoded = np.asarray(opened(image).convert("RGB")).astype(int)
    assert np.abs(decoded - pixels).mean() < 6
    assert b"seed" not in image.data
    assert b"roof" not in image.data


@pytest.mark.parametrize("output_format", [JPEG, WEBP])
def test_quality_changes_the_size(output_format: images_pb2.OutputFormat.ValueType) -> None:
    sizes = [len(encode_image(noise(128, 128), output_format, quality, {}).data) for quality in (1, 50, 90, 100)]
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize(
    ("output_format", "media_type", "pillow_format"),
    [(PNG, "image/png", "PNG"), (JPEG, "image/jpeg", "JPEG"), (WEBP, "image/webp", "WEBP")],
)
def test_description_of_the_file(
    output_format: images_pb2.OutputFormat.ValueType, media_type: str, pillow_format: str
) -> None:
    image = encode_image(noise(96, 64), output_format, 90, {})
    assert image.media_type == media_type
    assert (image.width, image.height) == (96, 64)
    assert image.sha256 == hashlib.sha256(image.data).hexdigest()
    assert opened(image).format == pillow_format
    assert opened(image).size == (96, 64)
    assert opened(image).mode == "RGB"


@pytest.mark.parametrize("output_format", [PNG, JPEG, WEBP])
def test_same_pixels_give_the_same_bytes(output_format: images_pb2.OutputFormat.ValueType) -> None:
    assert encode_image(noise(64, 64), output_format, 90, TEXT) == encode_image(noise(64, 64), output_format, 90, TEXT)


def test_big_png_leaves_other_threads_their_turn() -> None:
    """The endpoint answers health on a thread of its own while images are encoded on others."""
    pixels = noise(2048, 2048)
    images: list[EncodedImage] = []
    encoders = [threading.Thread(target=lambda: images.append(encode_image(pixels, PNG, 0, {}))) for _ in range(4)]
    for encoder in encoders:
        encoder.start()
    turns = 0
    while any(encoder.is_alive() for encoder in encoders):
        time.sleep(0.001)  # as a thread that waits for its turn
        turns += 1

    assert len(images) == len(encoders)
    assert len(images[0].data) > 12 * 2**20  # noise does not compress: the largest PNG of this size
    assert turns > 10 * len(encoders)  # an encoder that kept the lock to itself would leave one turn each
