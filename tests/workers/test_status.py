from __future__ import annotations

from pixelpod.v1 import group_pb2, images_pb2
from service.batch_key import BatchKey
from tests.workers.models import accept, make_model, make_queue, make_request
from workers.descriptor import describe
from workers.status import StatusBoard


def board() -> StatusBoard:
    return StatusBoard("group-a", make_model(), ranks=2, epoch=1234, queue=make_queue())


def test_it_begins_loading_with_the_whole_model_file() -> None:
    status = board().snapshot()
    assert (status.group, status.epoch, status.ranks, status.contract_version) == ("group-a", 1234, 2, 3)
    assert status.state == group_pb2.GROUP_STATE_LOADING
    assert status.reason
    assert status.free_slots == 0
    assert status.model == images_pb2.Model(
        name="small",
        revision="r1",
        family="sd3",
        buckets=[
            images_pb2.Bucket(width=64, height=64, batch_sizes=[1, 2, 4]),
            images_pb2.Bucket(width=128, height=64, batch_sizes=[2]),
        ],
        limits=images_pb2.Limits(
            steps=images_pb2.IntegerLimits(minimum=1, maximum=50),
            guidance_scale=images_pb2.NumberLimits(minimum=0, maximum=10),
            num_images=images_pb2.IntegerLimits(minimum=1, maximum=8),
            max_sequence_length=images_pb2.IntegerLimits(minimum=77, maximum=256, choices=[77, 256]),
            max_prompt_bytes=100,
            max_pixels=128 * 64 * 8,
        ),
        defaults=images_pb2.Defaults(
            width=64,
            height=64,
            num_images=1,
            steps=10,
            guidance_scale=4.0,
            max_sequence_length=77,
            output_format=images_pb2.OUTPUT_FORMAT_PNG,
            quality=90,
        ),
    )


def test_it_tells_the_only_numbers_of_steps_served() -> None:
    limits = make_model().model_dump(mode="json")["limits"] | {"steps_served": [4, 10]}
    assert describe(make_model(limits=limits)).limits.steps.choices == [4, 10]


def test_it_tells_what_it_learns_and_each_change() -> None:
    status, changes = board(), []
    status.on_change(lambda: changes.append(status.state))
    status.tell_traits(guidance_used=True, negative_prompt=True)
    status.enter(group_pb2.GROUP_STATE_WARMING, "buckets compile")
    status.tell_warm(128, 64, measured_seconds=2.0, step_seconds=0.125)
    status.enter(group_pb2.GROUP_STATE_READY)
    assert changes == [group_pb2.GROUP_STATE_LOADING, *[group_pb2.GROUP_STATE_WARMING] * 2, group_pb2.GROUP_STATE_READY]

    told = status.snapshot()
    assert told.model.limits.guidance_used
    assert told.model.limits.negative_prompt
    assert [bucket.warm for bucket in told.model.buckets] == [False, True]
    assert (told.model.buckets[1].measured_seconds, told.model.buckets[1].step_seconds) == (2.0, 0.125)
    assert (told.reason, told.free_slots) == ("", 8)
    assert [status.warm(64, 64), status.warm(128, 64)] == [False, True]


def test_it_tells_what_batches_took() -> None:
    queue = make_queue()
    status = StatusBoard("group-a", make_model(), ranks=2, epoch=1234, queue=queue)
    assert not status.snapshot().batch_seconds
    batch = group_pb2.RunBatch(width=128, height=64, batch_size=2)
    queue.estimates.observe(batch, step_seconds=0.5, beside_seconds=0.25)
    told = group_pb2.BatchSeconds(width=128, height=64, batch_size=2, step_seconds=0.5, beside_seconds=0.25)
    assert list(status.snapshot().batch_seconds) == [told]


def test_a_snapshot_is_a_copy() -> None:
    status = board()
    status.snapshot().model.name = "changed"
    assert status.snapshot().model.name == "small"


def test_a_draining_group_never_becomes_ready() -> None:
    status = board()
    status.enter(group_pb2.GROUP_STATE_DRAINING, "the group is stopping")
    status.enter(group_pb2.GROUP_STATE_READY)
    assert status.snapshot().state == group_pb2.GROUP_STATE_DRAINING
    assert status.snapshot().reason == "the group is stopping"


async def test_it_tells_what_waits_by_what_can_be_mates() -> None:
    queue = make_queue()
    status = StatusBoard("group-a", make_model(), ranks=2, epoch=1234, queue=queue)
    requests = [
        make_request(seeds=[1, 2], negative_prompt="blue"),
        make_request(seeds=[3]),
        make_request(seeds=[4]),
        make_request(steps=7, guidance_scale=2.0, max_sequence_length=256),
        make_request(width=128),
    ]
    alone = make_request()
    alone.alone = True
    for request in [*requests, alone]:
        queue.put(accept(request))
    assert (len(status.snapshot().waiting), len(status.snapshot().computing)) == (5, 1)
    told = {BatchKey.of_waiting(waiting): waiting.images for waiting in status.snapshot().waiting_images}
    assert told == {
        BatchKey(64, 64, 10, 4.0, 77, True): 2,
        BatchKey(64, 64, 10, 4.0, 77, False): 2,
        BatchKey(64, 64, 7, 2.0, 256, False): 1,
        BatchKey(128, 64, 10, 4.0, 77, False): 1,
    }
    assert {BatchKey.of(request.parameters) for request in requests} == set(told)
    queue.take(0)
    assert BatchKey(64, 64, 10, 4.0, 77, True) not in {
        BatchKey.of_waiting(waiting) for waiting in status.snapshot().waiting_images
    }
