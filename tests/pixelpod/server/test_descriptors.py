"""How many connections descriptors allow, in processes with limits of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

RUN = """
import logging, resource, sys
from pixelpod.server.connections import ConnectionLimits
from pixelpod.server.descriptors import connections_within_limit, raise_descriptor_limit
logging.basicConfig()
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
raise_descriptor_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
print(connections_within_limit(ConnectionLimits(2048, 1024, 1.0, 1.0)).connections)
"""


@pytest.mark.parametrize(
    ("soft", "hard", "connections"),
    [(1024, 8192, 2048), (2048, 2048, 1536), (1024, 1024, 768), (256, 256, 128), (100, 100, 1)],
)
def test_connections_leave_descriptors_for_the_rest(soft: int, hard: int, connections: int) -> None:
    result = subprocess.run(
        [sys.executable, "-c", RUN, str(soft), str(hard)], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.split() == [str(hard), str(connections)]
    assert ("ulimit -n" in result.stderr) == (connections < 2048)
