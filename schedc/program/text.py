"""The text form of a rank program: one instruction a line, bodies below.

::

    schedc program 1
    rank 1 of 2   microbatches 8   order zb_h1 #9c1e07
    stage 1: layers.2 layers.3 head
    buffer  x       x      fp32[2,128,256]   262144 bytes × 2   # 512.0 KiB
    buffer  saved1  saved                  43201536 bytes × 2   # 82.4 MiB
    queue   act.0-1

    stream
      0  count
      1  recv  x.0 <- rank 0      F s0 m0    queue act.0-1 seq 0    # zb_h1.sched:5
      2  load  labels.0 <- m0
      3  wait  x.0
      4  F     s1 m0        x.0! labels.0! -> loss.0 saved1.0       # zb_h1.sched:5

    body F s1         x labels -> loss saved
      call    layer.F  layers.2  x -> h1 saved.0

* The number before an instruction tells its row. It is informational: instructions count in the
  order in which they stand, so that lines may be moved, deleted and repeated by hand.
* ``x.0!`` is the last use of slot 0 of buffer ``x``. ``wait x.0`` waits for the latest post on the
  slot that was not waited for yet; ``wait x.0 @12`` for the one at row 12.
* ``tie head <-> rank 0`` sums the gradient of what the unit shares with one on that rank.
* ``last`` after a task chooses the body that also starts the reductions of gradients.
* After ``#`` stands the place that an instruction comes from, ``file:line`` (in JSON quotes where
  the file's name is odd). Any other comment is skipped, and so are blank lines and lines of
  comment. White space only separates words.

Printing is canonical: ``parse_program(print_program(p))`` is ``p``, and ``print_program`` of what a
canonical text parses to is that text. Errors in a text are diagnostics E507.
"""

from __future__ import annotations

from schedc.program.parse import parse_program
from schedc.program.print import (
    instruction_place,
    instruction_text,
    print_bytes,
    print_program,
)

__all__ = [
    "instruction_place",
    "instruction_text",
    "parse_program",
    "print_bytes",
    "print_program",
]
