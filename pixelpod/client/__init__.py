"""The client: text in, images out, from any service. Needs grpcio and protobuf, never torch.

from pixelpod.client import Client

with Client("127.0.0.1:7860") as client:
    result = client.generate("a red fox", seed=7, deadline_seconds=60)
    result.images[0].save("fox.png")
"""

from pixelpod.client.aio import AsyncClient
from pixelpod.client.channel import ConnectionOptions
from pixelpod.client.errors import (
    AnswerTooLargeError,
    DeadlineError,
    InvalidRequestError,
    OverloadedError,
    PermissionDeniedError,
    PixelpodError,
    RequestCancelledError,
    RequestIdReusedError,
    ServerError,
    UnauthenticatedError,
    UnavailableError,
    UnknownModelError,
)
from pixelpod.client.events import Accepted, Done, Event, Progress
from pixelpod.client.models import Bucket, Defaults, IntegerLimits, Limits, Model, NumberLimits
from pixelpod.client.options import GenerateOptions, GenerateParameters, OutputFormat, Priority, SizePolicy
from pixelpod.client.result import GeneratedImage, Generation, GenerationWarning, ResolvedParameters, Timings
from pixelpod.client.sync import Client

__all__ = [
    "Accepted",
    "AnswerTooLargeError",
    "AsyncClient",
    "Bucket",
    "Client",
    "ConnectionOptions",
    "DeadlineError",
    "Defaults",
    "Done",
    "Event",
    "GenerateOptions",
    "GenerateParameters",
    "GeneratedImage",
    "Generation",
    "GenerationWarning",
    "IntegerLimits",
    "InvalidRequestError",
    "Limits",
    "Model",
    "NumberLimits",
    "OutputFormat",
    "OverloadedError",
    "PermissionDeniedError",
    "PixelpodError",
    "Priority",
    "Progress",
    "RequestCancelledError",
    "RequestIdReusedError",
    "ResolvedParameters",
    "ServerError",
    "SizePolicy",
    "Timings",
    "UnauthenticatedError",
    "UnavailableError",
    "UnknownModelError",
]
