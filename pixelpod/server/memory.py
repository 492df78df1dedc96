"""How a server's allocator treats image-sized buffers, which come and go with every request."""

from __future__ import annotations

import ctypes

# From malloc.h of the GNU C library.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3

KEPT_BYTES = 64 * 1024 * 1024
"""Freed memory at the heap's end that the process keeps."""

LARGEST_BYTES = 32 * 1024 * 1024
"""The largest buffer that lies on the heap at all: glibc's upper bound."""


def keep_freed_memory() -> None:
    """Keep freed buffers for the next request.

    By default glibc's malloc gives memory of this size back to the kernel at once, and every request pays for new
    pages: half of a frontend's time with images of 768 KB. Other allocators, which may be preloaded, keep it anyway.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_TOP_PAD, KEPT_BYTES // 8)
        mallopt(_MMAP_THRESHOLD, LARGEST_BYTES)


def release_freed_memory() -> None:
    """Give freed memory back to the system, after a burst that is not expected to come again."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
