"""Why a group refuses to start."""

from __future__ import annotations


class ModelRefused(Exception):
    """The model file, or the checkpoint it names, can't be served. The message names the file and the mend.

    `pixelpod group` ends with exit code 2 on it: starting again can't help.
    """
