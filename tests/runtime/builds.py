"""Small compiled plans for the runtime's tests, and their oracle: one process of transformers."""

from __future__ import annotations

import fnmatch
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

from schedc.graph.build import build_model, parameter_names
from schedc.ir.cost import Costs
from schedc.ir.mesh import Mesh
from schedc.ir.order import Order
from schedc.ir.precision import Precision
from schedc.model.config import PRESETS
from schedc.passes.drop_idle import drop_idle
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
    microbatch: int = MICROBATCH
    tail: int = 0  # the size of the last microbatch, where it is smaller
    evaluation_microbatches: int = 2
    precision: Precision = FP32
    tied: bool = False
    freeze: tuple[str, ...] = ()
    model: str = "plain"

    @property
    def batch(self) -> int:
        return self.dp * (
            (self.microbatches - 1) * self.microbatch + (self.tail or self.microbatch)
        )


MODELS: dict[str, dict[str, object]] = {
    "plain": {},
    "biased": {"attention_bias": True, "mlp_bias": True, "head_dim": 32},
}
"""What differs from ``llama-test``."""


@cache
def model_of(
    layers: int,
    microbatch: int = MICROBATCH,
    tail: int = 0,
    tied: bool = False,
    freeze: tuple[str, ...] = (),
    model: str = "plain",
    dtype: str = "fp32",
) -> Model:
    config = replace(
        PRESETS["llama-test"],
        num_hidden_layers=layers,
        tie_word_embeddings=tied,
        **MODELS[model],  # type: ignore[arg-type]
    )
    names = parameter_names(config)
    frozen = frozenset(n for pattern in freeze for n in fnmatch.filter(names, pattern))
    return build_model(config, microbatch, SEQUENCE, dtype, tail=tail, frozen=frozen)


def even_partition(model: Model, stages: int) -> tuple[tuple[str, ...], ...]:
    """All units over the stages, the larger shares first."""
    names = [unit.name for unit in model.units]
    cuts = [len(names) * s // stages for s in range(stages + 1)]
    return tuple(tuple(names[a:b]) for a, b in pairwise(cuts))


@cache
def artifact_of(shape: Shape) -> Artifact:
    model = model_of(
        shape.layers,
        shape.microbatch,
        shape.tail,
        shape.tied,
        shape.freeze,
        shape.model,
        shape.precision.model,
    )
    order = order_of(shape.schedule, shape.pp, shape.microbatches)
    partition = even_partition(model, order.stages)
    forwards = order_of(shape.schedule, shape.pp, shape.evaluation_microbatches).forwards()
    costs, reduce = Costs().of_stages(shape.pp, order.stages), shape.precision.reduce
    programs, evaluation = (
        compile_programs(simulate_order(each, costs), model, partition, shape.dp, reduce)
        for each in (drop_idle(order, model, partition), forwards)
    )
    manifest = Manifest(
        name="test",
        schedule=shape.schedule,
        mesh=Mesh(dp=shape.dp, pp=shape.pp),
        sequence=SEQUENCE,
        batch=shape.batch,
        microbatch=shape.microbatch,
        microbatches=shape.microbatches,
        precision=shape.precision,
        optimizer=shape.optimizer,
        evaluation=shape.dp * shape.evaluation_microbatches * shape.microbatch,
        rank_of=order.rank_of,
        stages=partition,
        units=model.units,
        signatures=model.graphs,
        config=model.config,
        sources={},
        hashes={},
    )
    return Artifact(manifest, programs, evaluation, model.sources)


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

V_SHAPED = """
schedule v_shaped {                              # the first and the last stage are on rank 0
    stages 2 * P
    place stage s on rank (s if s < P else 2 * P - 1 - s)
    order on rank r {
        for m in 0..M { F(r, m) }
        for m in 0..M { F(2 * P - 1 - r, m) }
        for m in 0..M { I(2 * P - 1 - r, m) }
        for m in 0..M { I(r, m) }
        for m in 0..M { W(r, m) }
        for m in 0..M { W(2 * P - 1 - r, m) }    # the head's last W follows the embedding's
    }
}
"""

TEXTS = {"mixed": MIXED, "v_shaped": V_SHAPED}


@cache
def order_of(schedule: str, ranks: int, microbatches: int) -> Order:
    """The order of a bundled schedule, or of one of the above."""
    text = TEXTS.get(schedule)
    library = load_text(f"{schedule}.sched", text) if text is not None else bundled()
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
    frozen: frozenset[str] = frozenset(),
) -> Oracle:
    """Transformers' Llama on whole batches: sum of token losses over the number of valid labels."""
    model = LlamaForCausalLM(OracleConfig(**config, attn_implementation="sdpa"))  # pyright: ignore
    missing, unexpected = model.load_state_dict(parameters, strict=False)
    assert not unexpected
    assert missing == (["lm_head.weight"] if config["tie_word_embeddings"] else [])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=lr))
    updates = make([p for p in model.parameters() if p.requires_grad])
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
            graded = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
            oracle.gradients.update({n: gradient.clone() for n, gradient in graded.items()})
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip if clip else 1e30)
        updates.step()
        oracle.losses.append(loss.item())
        oracle.norms.append(norm.item())
    oracle.parameters.update({n: p.detach().clone() for n, p in model.named_parameters()})
    return oracle
