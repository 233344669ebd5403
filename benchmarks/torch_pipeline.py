"""The same Llama under ``torch.distributed.pipelining``, as fast as one would write it.

The modules are those that our graphs are traced from, with three differences, all in torch's
favour: attention is called as ``scaled_dot_product_attention``, whose autograd is native (ours
would go through Python), rotary tables are made once instead of in every forward, and logits are
not collected. Tokens and labels are in memory before a step begins.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from schedc.graph.llama import Llama, SelfAttention
from schedc.model.config import LlamaConfig
from schedc.program.manifest import Manifest

SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "one_f_one_b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
}


class Attention(nn.Module):
    """``schedc.graph.llama.Core`` by torch's own function: [b, s, heads, e]."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=self.scale, enable_gqa=True
        )
        return out.transpose(1, 2)


class Stage(nn.Module):
    """The units of one stage: tokens or hidden states to hidden states or logits."""

    def __init__(self, llama: Llama, units: tuple[str, ...], sequence: int) -> None:
        super().__init__()
        self.embedding = llama.model.embed_tokens if "embedding" in units else None
        numbers = [int(unit.removeprefix("layers.")) for unit in units if "." in unit]
        self.layers = nn.ModuleList(llama.model.layers[number] for number in numbers)
        self.norm = llama.model.norm if "head" in units else None
        self.head = llama.lm_head if "head" in units else None
        cos, sin = llama.model.rotary_emb(torch.arange(sequence))
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return x if self.norm is None or self.head is None else self.head(self.norm(x))


class TorchRank:
    """One rank: its stages, schedule and optimizer. ``values`` are its parameters by name."""

    def __init__(
        self,
        config: LlamaConfig,
        manifest: Manifest,
        schedule: str,
        values: Mapping[str, Tensor],
        valid: int,
    ) -> None:
        llama = Llama(config)
        for module in llama.modules():
            if isinstance(module, SelfAttention):
                module.core = Attention(module.core.scale)
        self.rank, self.valid, loss = dist.get_rank(), valid, llama.loss
        count = len(manifest.stages)
        mine = [s for s in range(count) if manifest.rank_of[s] == self.rank]
        modules = [Stage(llama, manifest.stages[s], manifest.sequence) for s in mine]
        held = {id(p) for module in modules for p in module.parameters()}
        self.parameters = {n: p for n, p in llama.named_parameters() if id(p) in held}
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(values[name])
        stages = [
            PipelineStage(module, s, count, torch.device("cpu"))
            for s, module in zip(mine, modules, strict=True)
        ]
        self.schedule = SCHEDULES[schedule](
            stages if schedule == "interleaved" else stages[0],
            manifest.microbatches,
            loss_fn=lambda logits, labels: loss(logits, labels) / valid,
            scale_grads=False,
        )
        self.first, self.last = 0 in mine, count - 1 in mine
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(), betas=(0.9, 0.95), weight_decay=0.0, lr=1e-4, fused=True
        )
        self.loss = torch.zeros((), dtype=torch.float64)

    def gradients(self, tokens: Tensor, labels: Tensor) -> None:
        """All microbatches forward and backward: gradients are accumulated afterwards."""
        self.optimizer.zero_grad(set_to_none=True)
        losses: list[Tensor] = []
        self.schedule.step(
            *((tokens,) if self.first else ()),
            target=labels if self.last else None,
            losses=losses if self.last else None,
            return_outputs=False,
        )
        self.loss.zero_()
        if losses:
            self.loss += torch.stack(losses).detach().double().sum()

    def update(self) -> None:
        """Loss to all ranks, global norm, clipping, AdamW: what follows in a training step."""
        norm = nn.utils.get_total_norm(
            [p.grad for p in self.parameters.values() if p.grad is not None]
        )
        squares = norm.double().square()
        dist.all_reduce(squares)
        nn.utils.clip_grads_with_norm_(self.parameters.values(), 1.0, squares.sqrt().float())
        self.optimizer.step()
        dist.all_reduce(self.loss)
