"""A shuffle that is computed, not stored: any element of the permutation in constant memory.

Each rank asks for the few positions of its own rows, at any step, so nothing is kept between steps
and a resumed run needs no state. Results depend on nothing but the arguments: on no library's
random generator, version or machine.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

ROUNDS = 6


def shuffled(positions: NDArray[np.int64], count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The images of ``positions`` under the permutation of range(count) of this seed and epoch.

    A Feistel network over the smallest even number of bits that holds ``count``, applied again
    while an image lies outside of the range ("cycle walking", Black and Rogaway 2002, section 3).
    """
    half = np.uint64(max(1, -(-(count - 1).bit_length() // 2)))
    mask = np.uint64((1 << int(half)) - 1)
    digest = hashlib.sha512(f"shuffle {seed} {epoch}".encode()).digest()
    keys = np.frombuffer(digest, dtype="<u8")[:ROUNDS].astype(np.uint64)

    def network(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values >> half, values & mask
        for key in keys:
            left, right = right, left ^ (_mixed(right ^ key) & mask)
        return (left << half) | right

    images = network(positions.astype(np.uint64))
    while (outside := images >= np.uint64(count)).any():
        images[outside] = network(images[outside])
    return images.astype(np.int64)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014): every bit depends on every bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
