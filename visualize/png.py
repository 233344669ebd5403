"""The chart as PNG, through cairosvg (the extra ``png``)."""

from __future__ import annotations

import importlib
from typing import Protocol, cast


class _Renderer(Protocol):
    def svg2png(self, *, bytestring: bytes, scale: float) -> bytes: ...


def to_png(svg: str, scale: float = 2.0) -> bytes:
    """The picture at ``scale`` pixels a unit. Raises RuntimeError without the extra ``png``."""
    try:
        renderer = cast(_Renderer, importlib.import_module("cairosvg"))
    except (ImportError, OSError) as error:  # OSError: the cairo library itself is missing
        raise RuntimeError(
            f"a PNG needs cairosvg, which cannot be loaded ({error}): "
            "install it with pip install 'schedc[png]', or write an .svg"
        ) from error
    return renderer.svg2png(bytestring=svg.encode(), scale=scale)
