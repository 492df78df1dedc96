"""Asks a group for one image and prints what came: python -m tests.e2e.ask_group ADDRESS SECONDS REQUEST

REQUEST is an ExecuteRequest in hexadecimal. It waits until the group serves. For tests whose group only another host
reaches; it imports little, since it starts while a group does.
"""

from __future__ import annotations

import hashlib
import json
import sys

import grpc

from pixelpod.v1 import group_pb2, group_pb2_grpc
from tests.e2e.processes import wait_serving

if __name__ == "__main__":
    address, seconds, request = sys.argv[1], float(sys.argv[2]), bytes.fromhex(sys.argv[3])
    wait_serving(address, seconds)
    with grpc.insecure_channel(address) as channel:
        stub = group_pb2_grpc.WorkerGroupStub(channel)
        status = next(stub.WatchStatus(group_pb2.WatchStatusRequest(), timeout=10))
        answer = stub.ExecuteStream(group_pb2.ExecuteRequest.FromString(request), timeout=30)
        image = b"".join(chunk.data for events in answer for chunk in events.image_chunk)  # of one image, in order
    digest = hashlib.sha256(image).hexdigest()
    print(json.dumps({"ranks": status.ranks, "group": status.group, "epoch": status.epoch, "image": digest}))
