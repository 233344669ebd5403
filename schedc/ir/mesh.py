"""The device mesh: which global rank stands at which (dp, pp, cp, tp) coordinate."""

from __future__ import annotations

from dataclasses import dataclass

AXES = ("tp", "cp", "dp", "pp")
"""The axes from fastest to slowest: neighbouring global ranks share a tensor-parallel group."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """Sizes of the parallel axes; an axis left out is 1."""

    dp: int = 1
    pp: int = 1
    cp: int = 1
    tp: int = 1

    @property
    def size(self) -> int:
        return self.dp * self.pp * self.cp * self.tp

    def axis_size(self, axis: str) -> int:
        return {"dp": self.dp, "pp": self.pp, "cp": self.cp, "tp": self.tp}[axis]

    def coordinates(self, rank: int) -> dict[str, int]:
        """The coordinate of global ``rank`` on every axis."""
        found: dict[str, int] = {}
        for axis in AXES:
            rank, found[axis] = divmod(rank, self.axis_size(axis))
        return found

    def rank_at(self, dp: int = 0, pp: int = 0, cp: int = 0, tp: int = 0) -> int:
        """The global rank at a coordinate."""
        return tp + self.tp * (cp + self.cp * (dp + self.dp * pp))

    def groups(self, *axes: str) -> tuple[tuple[int, ...], ...]:
        """All groups of global ranks that differ only on ``axes``, each and all in rank order."""
        members: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.size):
            at = self.coordinates(rank)
            key = tuple(at[axis] for axis in AXES if axis not in axes)
            members.setdefault(key, []).append(rank)
        return tuple(sorted(tuple(group) for group in members.values()))

    def __str__(self) -> str:
        return " ".join(f"{axis}={self.axis_size(axis)}" for axis in ("dp", "pp", "cp", "tp"))
