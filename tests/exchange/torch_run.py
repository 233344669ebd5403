"""One rank of torch's own pipeline runtime on a schedule CSV; prints its gradients' difference.

torchrun --nproc-per-node 2 torch_run.py FILE FORMAT STAGES MICROBATCHES
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

WIDTH = 8


def main() -> None:
    file, form, stages, microbatches = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(stages)]
    inputs, targets = torch.randn(2, 4 * microbatches, WIDTH)
    loss = lambda output, target: ((output - target) ** 2).sum()  # noqa: E731
    loss(nn.Sequential(*layers)(inputs), targets).backward()
    expected = [[p.grad.clone() for p in layer.parameters()] for layer in layers]
    for layer in layers:
        layer.zero_grad()
    row = Path(file).read_text().splitlines()[rank]
    mine = sorted({int(stage) for stage in re.findall(r"\b([0-9]+)F[0-9]", row)})
    assert len(mine) == stages // ranks
    parts = [PipelineStage(layers[s], s, stages, torch.device("cpu")) for s in mine]
    schedule = _PipelineScheduleRuntime(parts, microbatches, loss_fn=loss, scale_grads=False)
    schedule._load_csv(file, format=form)
    has = {0: (inputs,)} if 0 in mine else {}
    schedule.step(*has.get(0, ()), **({"target": targets} if stages - 1 in mine else {}))
    worst = max(
        (p.grad - known).abs().max().item()
        for stage in mine
        for p, known in zip(layers[stage].parameters(), expected[stage], strict=True)
    )
    print(f"rank {rank} difference {worst}")
    dist.destroy_process_group()
    assert worst < 1e-5


if __name__ == "__main__":
    main()
