"""A container without an engine: a read-only file system, no shell, and a user id that has no account."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conftest import SESSION_VARIABLE

_ENTER = """
set -e
mount --bind "$1" "$1"
mount -o remount,bind,ro /
for shell in /bin/sh /bin/bash; do mount --bind /dev/null "$(readlink -f "$shell")"; done
shift
exec "$@"
"""
"""What stays writable is the first argument; /dev/shm and the like are mounts of their own."""


def missing_for_containers() -> str:
    """Return why `contained` can't be had here; empty if it can."""
    for program in ("unshare", "setpriv", "mount"):
        if shutil.which(program) is None:
            return f"there is no {program}"
    result = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, timeout=10, check=False)
    return result.stderr.strip()


def contained(argv: Sequence[str], environment: Mapping[str, str], user: str, scratch: Path) -> list[str]:
    """Return the command that runs `argv` as in a container.

    Args:
        argv: Program and arguments.
        environment: Nothing else is in the program's environment but HOME, which is read-only, and TMPDIR.
        user: Its user and group id, "65532:65532".
        scratch: The only folder that can be written to.
    """
    scratch.mkdir()
    scratch.chmod(0o777)
    variables = {**environment, "HOME": "/", "TMPDIR": str(scratch), SESSION_VARIABLE: os.environ[SESSION_VARIABLE]}
    uid, _, gid = user.partition(":")
    # The tests' interpreter and folders may be root's own, so it may read everything; write it may not.
    capabilities = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    return [
        *("unshare", "--mount", "sh", "-c", _ENTER, "enter", str(scratch)),
        *("setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--no-new-privs", *capabilities),
        *("env", "--ignore-environment", *(f"{name}={value}" for name, value in variables.items())),
        *argv,
    ]
