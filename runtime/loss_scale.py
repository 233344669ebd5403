"""The loss scale of fp16: as large as gradients bear, so that small ones do not vanish."""

from __future__ import annotations

GROW_AFTER = 2000
"""Steps in a row that must have been finite before the scale is doubled."""


class LossScale:
    """What the gradient of the loss is multiplied by; 1 for ever where ``first`` is 0.

    It starts at ``first``, is halved (not below 1) when gradients overflowed, and doubled after
    :data:`GROW_AFTER` updates without that. Every rank decides alike, from the same norm and loss.
    The rule is that of Micikevicius et al. 2018, section 3.2.
    """

    def __init__(self, first: int) -> None:
        self.dynamic = first > 0
        self.value = float(first) if self.dynamic else 1.0
        self._updates = 0

    def updated(self) -> None:
        """A step's gradients were finite."""
        self._updates += 1
        if self.dynamic and self._updates == GROW_AFTER:
            self.value, self._updates = 2 * self.value, 0

    def overflowed(self) -> None:
        """A step's gradients were not finite, though its loss was."""
        self._updates = 0
        if self.dynamic:
            self.value = max(1.0, self.value / 2)
