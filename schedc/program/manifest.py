"""The manifest of a compiled folder: everything about it but the programs and the graphs."""

from __future__ import annotations

from dataclasses import dataclass

from schedc.ir.mesh import Mesh
from schedc.ir.precision import Precision
from schedc.program.signature import Signature, Unit

SCHEMA = "schedc build 1"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a compiled folder is, and what the runtime needs beside programs and graphs.

    A pass of an evaluation reads ``evaluation`` sequences, in microbatches of ``microbatch``.
    ``stages[s]`` names the units of stage ``s``; ``rank_of[s]`` its rank. ``sources`` holds the
    source lines that places in programs point to: {"zb_h1.sched": {5: "  for i in …"}}. ``hashes``
    are of source (whatever its line ends), model, costs and graphs. No time stamps, no absolute
    paths: same input, same bytes.
    """

    name: str
    schedule: str
    mesh: Mesh
    sequence: int
    batch: int
    microbatch: int
    microbatches: int
    precision: Precision
    optimizer: str
    evaluation: int
    rank_of: tuple[int, ...]
    stages: tuple[tuple[str, ...], ...]
    units: tuple[Unit, ...]
    signatures: dict[str, Signature]
    config: dict[str, object]
    sources: dict[str, dict[int, str]]
    hashes: dict[str, str]

    @property
    def evaluation_microbatches(self) -> int:
        """Microbatches a pass of an evaluation and data-parallel replica."""
        return self.evaluation // (self.mesh.dp * self.microbatch)
