"""The graph that makes the rotary tables, once on each stage."""

from __future__ import annotations

from dataclasses import replace

from schedc.graph.emit import digest, header
from schedc.graph.joint import DTYPES
from schedc.graph.rotary import attention_factor, inverse_frequencies
from schedc.model.config import LlamaConfig
from schedc.program.signature import Signature, Value

SOURCE = """\
import torch

FREQUENCIES = (  # angle per position, by pair: exact fp32 numbers
{frequencies}
)


def rotary(args):
    (positions,) = args
    args.clear()
    frequencies = torch.tensor(FREQUENCIES, dtype=torch.float32, device=positions.device)
    angles = positions.to(torch.float32).unsqueeze(-1) * frequencies
    del positions, frequencies
    angles = torch.cat((angles, angles), -1)
    cos = angles.cos(){scaled}.to({dtype})
    sin = angles.sin(){scaled}.to({dtype})
    return (cos, sin,)
"""


def rotary_graph(config: LlamaConfig, sequence: int, dtype: str) -> tuple[Signature, str]:
    """The graph that makes the tables: positions [sequence] to cos and sin [sequence, head_dim].

    Its frequencies are literals, so that every device has the same ones.
    """
    size = config.head_dim
    inputs = (Value("positions", "positions", (sequence,), "int64", (1,)),)
    outputs = (
        Value("cos", "cos", (sequence, size), dtype, (size, 1)),
        Value("sin", "sin", (sequence, size), dtype, (size, 1)),
    )
    frequencies = "\n".join(f"    {number!r}," for number in inverse_frequencies(config))
    factor = attention_factor(config)
    scaled = f".mul_({factor!r})" if factor != 1 else ""  # in place: its result is of the same size
    code = SOURCE.format(frequencies=frequencies, dtype=DTYPES[dtype], scaled=scaled)
    title = f"rotary tables for {sequence} positions, {dtype}"
    source = "\n".join(header("rotary", title, inputs, outputs)) + "\n" + code
    # fp32 numbers: positions, frequencies, angles (half, whole), cos and sin; then the casts.
    angles, table = 4 * sequence * size, outputs[0].bytes
    casts = 0 if dtype == "fp32" else 2 * (angles + table)
    moved = 12 * sequence + 2 * size + 6 * angles + casts + (4 * angles if scaled else 0)
    peak = angles + table + (table if not casts else angles + table)
    signature = Signature("rotary", "", inputs, outputs, 0, moved, peak, peak)
    return replace(signature, digest=digest(source, signature)), source
