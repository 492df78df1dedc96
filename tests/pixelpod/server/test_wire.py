from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixelpod.server.wire import field, read_fields, varint
from pixelpod.v1 import images_pb2


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**64 - 1), st.binary(max_size=400))
def test_fields_are_read_as_protobuf_wrote_them(index: int, offset: int, data: bytes) -> None:
    written = images_pb2.ImageChunk(index=index, offset=offset, data=data).SerializeToString()
    expected = {number: value for number, value in ((1, index), (2, offset), (3, data)) if value}
    fields = list(read_fields(memoryview(written)))
    assert {field.number: field.value for field in fields} == expected
    assert b"".join(field.encoded for field in fields) == written


@given(st.integers(0, 2**31 - 1), st.binary(min_size=1, max_size=400), st.integers(0, 400))
def test_protobuf_reads_fields_as_they_were_written(index: int, data: bytes, cut: int) -> None:
    written = b"".join([b"\x08" + varint(index), *field(3, [memoryview(data)[:cut], data[cut:]])])
    assert images_pb2.ImageChunk.FromString(written) == images_pb2.ImageChunk(index=index, data=data)


def test_other_types_are_refused() -> None:
    written = images_pb2.Progress(seconds_left=1.0).SerializeToString()
    with pytest.raises(ValueError, match="field 3 has wire type 1"):
        list(read_fields(memoryview(written)))
