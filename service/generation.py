"""The data plane: takes a request from validation through a group to its closing event. Knows no gRPC server."""

from __future__ import annotations

from contextlib import aclosing

from pixelpod.server.errors import DeadlinePassed
from pixelpod.v1 import group_pb2, images_pb2
from service.events import Events, decode_unless_chunk
from service.group_connection import GroupConnection
from service.groups import Groups
from service.records import RequestRecord
from service.router import choose_group, predicted_finish_seconds, predicted_seconds, ready_groups
from service.validation import ResolvedRequest, resolve_request, resolve_request_id

LEAST_SECONDS = 0.01
"""No image is made in less: a request with less time left is not sent to a group."""


async def generate_events(request: images_pb2.GenerateRequest, groups: Groups, record: RequestRecord) -> Events:
    """Yield the events that answer `request`: accepted, then what the group sends, then done.

    Closing the iterator stops the computation. `record` sets the request's time and takes down what becomes known.

    Raises:
        RequestError: that ends the request.
    """
    record.request_id = resolve_request_id(request)
    model = groups.find_model(request.model)
    record.model = model.name
    ready = ready_groups(groups, model.name)
    resolved = resolve_request(request, model)
    group = choose_group(ready, resolved.parameters)
    accepted = images_pb2.Accepted(
        request_id=record.request_id,
        position=group.requests_ahead,
        predicted_seconds=predicted_finish_seconds(group, resolved.parameters),
    )
    with group.expecting(predicted_seconds(group, resolved.parameters)):
        yield images_pb2.GenerateEvent(accepted=accepted)
        execution = group_pb2.ExecuteRequest(
            request_id=record.request_id, model=model.name, prompt=request.prompt, parameters=resolved.parameters
        )
        async with aclosing(_execute(execution, resolved, group, record)) as events:
            async for event in events:
                yield event


async def _execute(
    execution: group_pb2.ExecuteRequest, resolved: ResolvedRequest, group: GroupConnection, record: RequestRecord
) -> Events:
    """Run a resolved request on `group` and yield its events, the last of them completed."""
    if record.remaining_seconds < LEAST_SECONDS:
        raise record.out_of_time()
    waited_seconds = record.elapsed_seconds
    try:
        async with aclosing(group.execute(execution, record.remaining_seconds)) as encoded_events:
            async for encoded in encoded_events:
                event = decode_unless_chunk(encoded)
                if isinstance(event, bytes) or event.HasField("progress"):
                    yield event
                elif event.HasField("done"):
                    _complete(event.done, execution, resolved, waited_seconds, record)
                    yield event
                    return
    except DeadlinePassed as error:
        raise record.out_of_time() from error
    raise group.lost()


def _complete(
    done: images_pb2.GenerateResponse,
    execution: group_pb2.ExecuteRequest,
    resolved: ResolvedRequest,
    waited_seconds: float,
    record: RequestRecord,
) -> None:
    """Add the frontend's part to the group's closing message: parameters, warnings and the whole times."""
    done.request_id = execution.request_id
    done.model = execution.model
    done.parameters.CopyFrom(resolved.parameters)
    group_warnings = list(done.warnings)
    del done.warnings[:]
    done.warnings.extend([*resolved.warnings, *group_warnings])
    done.timings.queue_seconds += waited_seconds
    done.timings.total_seconds = record.elapsed_seconds
    record.queue_seconds = done.timings.queue_seconds
