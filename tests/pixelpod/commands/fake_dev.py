"""What `pixelpod dev` does, with stand-ins for the servers, as a process that tests send signals to.

python -m tests.pixelpod.commands.fake_dev [stubborn]
    stubborn: the group ignores SIGTERM, and would be waited for a long time
"""

from __future__ import annotations

import asyncio
import sys

from pixelpod.commands.addresses import free_address
from pixelpod.commands.deployment import Deployment, until_signal
from tests.pixelpod.commands.fake_servers import fake_server

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('stubborn', flush=True); time.sleep(60)"
)

if __name__ == "__main__":
    group, frontend = free_address(), free_address()
    stubborn = "stubborn" in sys.argv
    deployment = Deployment(
        group_argv=(sys.executable, "-c", STUBBORN) if stubborn else fake_server("group", group),
        group_address=group,
        frontend_argv=fake_server("frontend", frontend),
        frontend_address=frontend,
        grace_seconds=60.0,
    )

    async def use() -> None:
        print("ready", flush=True)
        await asyncio.Event().wait()

    asyncio.run(until_signal(deployment.run(lambda _: None, use)))
    print("stopped")
