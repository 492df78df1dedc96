"""`pixelpod generate`: asks a frontend for images and writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pixelpod.commands.image_files import check_output, chosen_size, output_format_of, write_images
from pixelpod.commands.parameters import (
    DEFAULT_ADDRESS,
    Insecure,
    Json,
    Server,
    Tls,
    TlsCa,
    TlsCert,
    TlsKey,
    TokenFile,
)

if TYPE_CHECKING:
    from pixelpod.client import ConnectionOptions, GenerateOptions, Generation


def generate(
    prompt: Annotated[str, typer.Argument(help="What to draw.")],
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", help="File to write; several images get -0, -1, ... before its ending. - is stdout."
        ),
    ],
    model: Annotated[str | None, typer.Option(help="Which model; needed where several are served.")] = None,
    negative_prompt: Annotated[str | None, typer.Option(help="What to avoid.")] = None,
    size: Annotated[str | None, typer.Option(metavar="WxH", help="Width and height in pixels, as 1024x768.")] = None,
    width: Annotated[int | None, typer.Option(help="Pixels.")] = None,
    height: Annotated[int | None, typer.Option(help="Pixels.")] = None,
    nearest_size: Annotated[bool, typer.Option("--nearest-size", help="Take the nearest size served.")] = False,
    num_images: Annotated[int | None, typer.Option(help="How many images.")] = None,
    steps: Annotated[int | None, typer.Option(help="Denoising steps.")] = None,
    guidance_scale: Annotated[float | None, typer.Option(help="How strongly the prompt steers.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the first image; image i gets seed + i.")] = None,
    max_sequence_length: Annotated[int | None, typer.Option(help="Tokens that the long text encoder reads.")] = None,
    output_format: Annotated[
        Literal["PNG", "JPEG", "WEBP"] | None,
        typer.Option("--format", case_sensitive=False, help="Default: by the ending of the output file."),
    ] = None,
    quality: Annotated[int | None, typer.Option(help="1 to 100, for JPEG and WEBP.")] = None,
    priority: Annotated[
        Literal["LOW", "NORMAL", "HIGH"] | None,
        typer.Option(case_sensitive=False, help="Order among waiting requests."),
    ] = None,
    deadline: Annotated[float | None, typer.Option(metavar="SECONDS", help="When to give up.")] = None,
    request_id: Annotated[str | None, typer.Option(help="Names the request in answers and logs.")] = None,
    server: Server = DEFAULT_ADDRESS,
    tls: Tls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Make images from a prompt.

    What is left out is the model's default; `pixelpod models` tells them.
    """
    from pixelpod.client import GenerateOptions
    from pixelpod.commands.connection import connection_options

    check_output(output, as_json)
    width, height = chosen_size(size, width, height)
    options = GenerateOptions(
        prompt,
        model=model,
        negative_prompt=negative_prompt,
        width=width,
        height=height,
        num_images=num_images,
        steps=steps,
        guidance_scale=guidance_scale,
        seed=seed,
        max_sequence_length=max_sequence_length,
        output_format=output_format or output_format_of(output),
        quality=quality,
        size_policy="NEAREST" if nearest_size else None,
        priority=priority,
        request_id=request_id,
    )
    connection = connection_options(
        tls=tls, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key, token_file=token_file, insecure=insecure
    )
    generation = _ask(server, connection, options, deadline)
    files = write_images(generation.images, output)

    from pixelpod.commands import report

    if as_json:
        report.print_generation_json(generation, files)
    else:
        report.print_generation(generation, files, to_stderr=output == "-")


def _ask(
    server: str, connection: ConnectionOptions, options: GenerateOptions, deadline_seconds: float | None
) -> Generation:
    from pixelpod.commands.connection import connected
    from pixelpod.commands.progress import progress_bar

    with connected(server, **connection) as client, progress_bar() as show:
        return client.generate(options, deadline_seconds=deadline_seconds, on_progress=show)
