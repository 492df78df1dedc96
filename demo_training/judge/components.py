"""Connected components of a mask."""

from __future__ import annotations

import numpy as np


def components(mask: np.ndarray) -> list[np.ndarray]:
    """Return the parts of a mask that hang together across edges of pixels, each as a mask.

    Every pixel starts with a label of its own, and takes the least label of its neighbours until nothing changes.

    Args:
        mask: (rows, columns) of bool.
    """
    outside = mask.size
    labels = np.full((mask.shape[0] + 2, mask.shape[1] + 2), outside)
    inner = labels[1:-1, 1:-1]
    inner[mask] = np.flatnonzero(mask)
    while True:
        least = np.minimum.reduce([inner, labels[:-2, 1:-1], labels[2:, 1:-1], labels[1:-1, :-2], labels[1:-1, 2:]])
        least = np.where(mask, least, outside)
        if np.array_equal(least, inner):
            return [inner == label for label in np.unique(inner[mask])]
        inner[:] = least
