"""The verifier: proves that programs do one step, completely, in order, and without deadlock.

What is proved of the programs of all pipeline ranks together, for any timing of ranks and links:

bodies (E508)
    A step's last microbatch runs bodies of its own where it is smaller. Every body calls each of
    its stage's graphs once, each on the value it wants (the chain of hidden states, of their
    gradients, the unit's own saved and owed tensors); runs give a body as many operands as its
    interface has; what it reduces, it reduces over dp. With a model: graphs that are idle are not
    called, and what nobody needs is neither saved, owed nor sent; the graphs exist and are the
    units', shapes and dtypes of buffers are those of the graphs, no ``y`` or ``dx`` is a view of an
    input, and a body whose tensors share memory with the stage's input or output gradient has that
    buffer among its operands.
tasks (E506)
    F, and B or else I and W, of every stage and microbatch, once, on the rank that holds the stage.
    Those that the model leaves nothing to do, its parameters being frozen, are not there.
messages (E501, E502)
    Every send meets exactly one receive of equal queue, number, task, shape and dtype. A queue
    connects the two ranks it names; its messages are numbered from 0 in the order in which both
    sides post them. Activations of stage s go to the rank of s + 1, gradients to that of s - 1.
buffers (E505; E502 where the wrong value was received)
    Every slot is filled, used, and freed once after its last use, in that order, again and again;
    it is empty at the end. A received slot is used only after its wait, and a sent one is freed
    only after its own. Every post is waited for once. Every operand holds exactly the value that
    its reader wants: x the activation of (s - 1, m), dy the gradient of (s + 1, m), saved that of
    F(s, m), owed that of I(s, m), tokens and labels those of m; ``report`` reads each loss once.
    A pool has as many slots as are used, each of as many bytes as its tensor (saved and owed ones,
    with a model: as the stage's graphs keep).
collectives (E504)
    ``count``, ``norm``, ``report`` and ``step`` stand once on every rank, the collectives in equal
    order on all. Gradients are reduced on all ranks or on none; each unit's once, after its last
    gradient (a frozen unit's not at all); the wait for it precedes ``norm``, which follows all
    backward operations; ``step`` follows the wait for ``norm``. The count is there before the first
    backward needs it. ``tie`` stands once on the two ranks of a tied parameter that is trained,
    where these are two, names the other and the unit here, follows the last of the unit's gradients
    and the wait for their reduction; its wait precedes ``norm``.
progress (E503)
    No cycle in the union graph: program order on each rank, a wait after its transfer, a transfer
    after both of its posts (rendezvous, no buffering), ``tie`` likewise, ``norm`` and ``report``
    after every rank's, and what shares a queue one after another. Proved on three machines: queues
    as they are, one queue a communicator, and one queue a rank, sums included. There are no
    wildcard receives, so one topological sort decides it;
    :mod:`schedc.program.verify_progress` says why. What is printed otherwise is the shortest cycle.

Replicas along dp run the same program, so what is collective over dp alone is in equal order on
all of them by construction.
"""

from __future__ import annotations

from schedc.diagnostics import DiagnosticError
from schedc.program.program import Programs
from schedc.program.signature import Model
from schedc.program.verify_bodies import check_bodies
from schedc.program.verify_buffers import check_buffers
from schedc.program.verify_collectives import check_collectives
from schedc.program.verify_columns import Columns, Findings
from schedc.program.verify_messages import check_messages
from schedc.program.verify_progress import check_progress
from schedc.program.verify_tasks import check_stages, check_tasks
from schedc.program.verify_tie import check_tie


def verify_programs(
    programs: Programs,
    model: Model | None = None,
    replicas: int | None = None,
    *,
    tied: bool = True,
) -> None:
    """Raises DiagnosticError unless the module's claims hold of ``programs``.

    ``model`` adds the checks against its units and signatures; without it nothing is taken to be
    frozen. ``replicas`` is the size of dp: with more than one, gradients must be reduced; unknown,
    the programs only have to agree on it. ``tied`` False is for programs that are not tied yet.
    Mistakes of several kinds come together, where one does not hide the next.
    """
    findings = Findings(programs)
    check_stages(programs, findings)
    _raise(findings)
    check_bodies(programs, model, findings)
    _raise(findings)
    columns = Columns(programs)
    check_tasks(columns, model, findings)
    _raise(findings)
    transfers = check_messages(columns, findings)
    check_buffers(columns, model, findings)
    check_collectives(columns, model, replicas, findings)
    check_tie(columns, model, tied and not columns.evaluates, findings)
    _raise(findings)
    check_progress(columns, transfers, findings)
    _raise(findings)


def _raise(findings: Findings) -> None:
    if findings:
        raise DiagnosticError(findings.diagnostics())
