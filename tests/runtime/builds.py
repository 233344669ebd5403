"""Small compiled plans for the runtime's tests, and their oracle: one process of transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig as OracleConfig
from transformers import LlamaForCausalLM

from schedc.graph.build import build_model
from schedc.ir.cost import Costs
from schedc.ir.mesh import Mesh
from schedc.ir.order import Order
from schedc.ir.precision import Precision
from schedc.model.config import PRESETS
from schedc.passes.pipeline import compile_programs
from schedc.program.artifact import Artifact
from schedc.program.manifest import Manifest
from schedc.program.signature import Model
from schedc.sema.library import bundled, load_text
from schedc.sema.schedule import instantiate
from schedc.simulate.order import simulate_order

SEQUENCE = 16
MICROBATCH = 2
FP32 = Precision("fp32")


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a test's plan."""

    schedule: str
    pp: int
    microbatches: int
    dp: int = 1
    layers: int = 4
    optimizer: str = "sgd"
    precision: Precision = FP32

    @property
    def batch(self) -> int:
        return self.dp * self.microbatches * MICROBATCH


@cache
def model_of(layers: int, dtype: str = "fp32") -> Model:
    config = replace(PRESETS["llama-test"], num_hidden_layers=layers)
    return build_model(config, MICROBATCH, SEQUENCE, dtype)


def even_partition(model: Model, stages: int) -> tuple[tuple[str, ...], ...]:
    """All units over the stages, the larger shares first."""
    names = [unit.name for unit in model.units]
    cuts = [len(names) * s // stages for s in range(stages + 1)]
    return tuple(tuple(names[a:b]) for a, b in pairwise(cuts))


@cache
def artifact_of(shape: Shape) -> Artifact:
    model = model_of(shape.layers, shape.precision.model)
    order = order_of(shape.schedule, shape.pp, shape.microbatches)
    partition = even_partition(model, order.stages)
    timeline = simulate_order(order, Costs().of_stages(shape.pp, order.stages))
    programs = compile_programs(timeline, model, partition, shape.dp, shape.precision.reduce)
    manifest = Manifest(
        name="test",
        schedule=shape.schedule,
        mesh=Mesh(dp=shape.dp, pp=shape.pp),
        sequence=SEQUENCE,
        batch=shape.batch,
        microbatch=MICROBATCH,
        microbatches=shape.microbatches,
        precision=shape.precision,
        optimizer=shape.optimizer,
        rank_of=order.rank_of,
        stages=partition,
        units=model.units,
        signatures=model.graphs,
        config=model.config,
        sources={},
        hashes={},
    )
    return Artifact(manifest, programs, model.sources)


MIXED = """
schedule mixed {                                 # B for even microbatches, I and W for odd ones
    place stage s on rank s
    order on rank r {
        for m in 0..M { F(r, m) }
        for m in 0..M { if m % 2 == 0 { B(r, m) } else { I(r, m) } }
        for m in 0..M { if m % 2 == 1 { W(r, m) } }
    }
}
"""


@cache
def order_of(schedule: str, ranks: int, microbatches: int) -> Order:
    """The order of a bundled schedule, or of the one above."""
    library = load_text("mixed.sched", MIXED) if schedule == "mixed" else bundled()
    return instantiate(library, schedule, ranks, microbatches, {}).order


def write_data(path: Path, batch: int, steps: int, vocabulary: int = 128) -> Path:
    """Random sequences; every row has another number of valid labels.

    Rows 2 and 3 of each step have none: with microbatches of two rows, one whole microbatch.
    """
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(0, vocabulary, (batch * steps, SEQUENCE), generator=generator)
    labels = ids.clone()
    for row in range(len(ids)):
        in_step = row % batch
        keep = 0 if in_step in (2, 3) else SEQUENCE - 3 * in_step % (SEQUENCE - 2)
        labels[row, keep:] = -100
    save_file({"input_ids": ids, "labels": labels}, path)
    return path


@dataclass(frozen=True, slots=True)
class Oracle:
    losses: list[float]
    norms: list[float]
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]


def run_oracle(
    config: dict[str, object],
    parameters: dict[str, Tensor],
    data: dict[str, Tensor],
    batch: int,
    steps: int,
    lr: float,
    clip: float,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
) -> Oracle:
    """Transformers' Llama on whole batches: sum of token losses over the number of valid labels."""
    model = LlamaForCausalLM(OracleConfig(**config, attn_implementation="sdpa"))  # pyright: ignore
    model.load_state_dict(parameters)
    make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=lr))
    updates = make(model.parameters())
    oracle = Oracle([], [], {}, {})
    for step in range(steps):
        ids, labels = (
            data[key][step * batch : (step + 1) * batch] for key in ("input_ids", "labels")
        )
        updates.zero_grad()
        logits = model(input_ids=ids).logits[:, :-1].flatten(0, 1)
        targets = labels[:, 1:].flatten()
        total = torch.nn.functional.cross_entropy(
            logits, targets, ignore_index=-100, reduction="sum"
        )
        loss = total / (targets != -100).sum()
        loss.backward()
        if step == 0:
            oracle.gradients.update({n: p.grad.clone() for n, p in model.named_parameters()})  # pyright: ignore
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip if clip else 1e30)
        updates.step()
        oracle.losses.append(loss.item())
        oracle.norms.append(norm.item())
    oracle.parameters.update({n: p.detach().clone() for n, p in model.named_parameters()})
    return oracle
