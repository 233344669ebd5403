"""Live memory of a step, exactly: every storage from its first use to its death."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from schedc.runtime.unit_state import CPU


class MemoryTracker(TorchDispatchMode):
    """Counts the bytes of live storages on ``device`` while it is entered.

    Those of other devices (a microbatch on its way to a GPU) and of ``persistent`` tensors
    (parameters and their kind) are not counted. Slows every operation down: for one step that is
    not timed. Rests on storages keeping their Python object for as long as they live.
    """

    def __init__(self, persistent: Iterable[Tensor], device: torch.device = CPU) -> None:
        super().__init__()
        self.device = device
        self.live = 0
        self.peak = 0
        self._known: set[int] = set()
        self._references: dict[int, weakref.ref[Any]] = {}
        for tensor in persistent:
            self._add(tensor, counted=False)

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor):
                self._add(leaf)
        result = func(*args, **kwargs)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._add(leaf)
        return result

    def take_peak(self) -> int:
        """The highest amount since the last call."""
        peak, self.peak = self.peak, self.live
        return peak

    def _add(self, tensor: Tensor, counted: bool = True) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes() if counted and storage.device == self.device else 0
        self._known.add(key)
        self._references[key] = weakref.ref(storage, lambda _: self._drop(key, size))
        self.live += size
        self.peak = max(self.peak, self.live)

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._references.pop(key, None)
        self.live -= size


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """The bytes of the distinct storages of ``tensors``."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())
