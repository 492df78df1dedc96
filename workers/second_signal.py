"""The second SIGTERM or SIGINT ends a launcher at once, and with it its ranks (see workers.lifeline).

torchrun's agent takes the first for a request to end in order, and would take the second for another one.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

_SIGNALS = {signal.SIGTERM, signal.SIGINT}


def end_on_second_signal(clean_up: Callable[[], None]) -> None:
    """From now on, exit with code 1 on the second signal, after `clean_up`. Only the main thread can call this.

    It looks at the bytes that the interpreter writes as soon as a signal comes, whatever the main thread does then.
    """
    wakeup, signals = socket.socketpair()
    wakeup.setblocking(False)
    signal.set_wakeup_fd(wakeup.fileno())

    def watch() -> None:
        seen = 0
        while seen < 2:
            seen += sum(number in _SIGNALS for number in signals.recv(64))
        logger.warning("second signal: ending at once")
        clean_up()
        logging.shutdown()
        wakeup.close()
        os._exit(1)

    threading.Thread(target=watch, name="second-signal", daemon=True).start()
