"""Llama, Mistral and Qwen as plain modules: Hugging Face's parameter names, its numbers bitwise.

The modules serve three ends: they are traced (module-level fx, then to aten), they are the oracle
of the graphs' tests under eager autograd, and their parameters name those of a checkpoint. Shapes
are written b: microbatch, s: sequence, d: hidden, h: heads, e: head_dim.

For tracing, code between leaves branches on no shape and unpacks none. Numbers: norms, loss and
rotary tables are computed in fp32 whatever the parameters' dtype, as transformers does.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from schedc.graph.rotary import attention_factor, inverse_frequencies
from schedc.model.config import LlamaConfig
from schedc.ops import attention


class Linear(nn.Linear):
    """A linear map whose values come from elsewhere: initial values go by a parameter's name."""

    def reset_parameters(self) -> None:
        pass


class Embedding(nn.Embedding):
    """A lookup table whose values come from elsewhere."""

    def reset_parameters(self) -> None:
        pass


class RMSNorm(nn.Module):
    """Root-mean-square norm with a weight; statistics in fp32."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, dtype=dtype))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        h = x.to(torch.float32)
        variance = h.pow(2).mean(-1, keepdim=True)
        h = h * torch.rsqrt(variance + self.eps)
        return self.weight * h.to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.weight.numel()}, eps={self.eps}"


class RotaryTables(nn.Module):
    """Positions [s] to the rotary tables cos and sin, [s, e] each, by fp32 arithmetic."""

    def __init__(self, config: LlamaConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.frequencies = inverse_frequencies(config)
        self.factor = attention_factor(config)
        self.dtype = dtype

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        frequencies = torch.tensor(self.frequencies, dtype=torch.float32, device=positions.device)
        angles = positions.to(torch.float32).unsqueeze(-1) * frequencies
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos() * self.factor, angles.sin() * self.factor
        return cos.to(self.dtype), sin.to(self.dtype)


class Rotate(nn.Module):
    """Turns query or key heads [b, s, h, e] by their positions' angles."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        halves = x.chunk(2, -1)
        turned = torch.cat((-halves[1], halves[0]), -1)
        return x * cos.unsqueeze(1) + turned * sin.unsqueeze(1)


class Core(nn.Module):
    """Causal attention: queries [b, s, h, e], fewer key and value heads."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, self.scale)[0]

    def extra_repr(self) -> str:
        return f"scale={self.scale}"


class SelfAttention(nn.Module):
    def __init__(self, config: LlamaConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        size, bias = config.hidden_size, config.qkv_bias
        heads = config.num_attention_heads * config.head_dim
        kv_heads = config.num_key_value_heads * config.head_dim
        self.q_proj = Linear(size, heads, bias=bias, dtype=dtype)
        self.k_proj = Linear(size, kv_heads, bias=bias, dtype=dtype)
        self.v_proj = Linear(size, kv_heads, bias=bias, dtype=dtype)
        self.o_proj = Linear(heads, size, bias=config.output_bias, dtype=dtype)
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps, dtype)
            self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps, dtype)
        self.qk_norm = config.qk_norm
        self.q_rotary = Rotate()
        self.k_rotary = Rotate()
        self.core = Core(config.head_dim**-0.5)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q = self.q_proj(x).unflatten(-1, (-1, self.head_dim))
        k = self.k_proj(x).unflatten(-1, (-1, self.head_dim))
        v = self.v_proj(x).unflatten(-1, (-1, self.head_dim))
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q = self.q_rotary(q, cos, sin)
        k = self.k_rotary(k, cos, sin)
        return self.o_proj(self.core(q, k, v).flatten(-2))


class MLP(nn.Module):
    def __init__(self, config: LlamaConfig, dtype: torch.dtype) -> None:
        super().__init__()
        size, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = Linear(size, inner, bias=bias, dtype=dtype)
        self.up_proj = Linear(size, inner, bias=bias, dtype=dtype)
        self.down_proj = Linear(inner, size, bias=bias, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    """Hidden states [b, s, d] to hidden states."""

    def __init__(self, config: LlamaConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.self_attn = SelfAttention(config, dtype)
        self.mlp = MLP(config, dtype)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, config: LlamaConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.embed_tokens = Embedding(
            config.vocab_size, config.hidden_size, config.pad_token_id, dtype=dtype
        )
        self.layers = nn.ModuleList(
            DecoderLayer(config, dtype) for _ in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.rotary_emb = RotaryTables(config, dtype)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        tables = self.rotary_emb(positions)
        cos, sin = tables[0], tables[1]
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class Loss(nn.Module):
    """Logits [b, s, vocabulary] and labels [b, s] to the fp32 sum of the valid tokens' losses.

    Labels are already shifted; those of -100 are ignored.
    """

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        scores = logits.to(torch.float32).flatten(0, 1)
        return F.cross_entropy(scores, labels.flatten(), ignore_index=-100, reduction="sum")


class Llama(nn.Module):
    """The whole model. Call it for the loss, or :meth:`logits`. Tied embeddings are one tensor."""

    def __init__(self, config: LlamaConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.model = Decoder(config, dtype)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False, dtype=dtype)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.loss = Loss()

    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Token ids [b, s] and positions [s] to logits [b, s, vocabulary]."""
        return self.lm_head(self.model(tokens, positions))

    def forward(self, tokens: Tensor, labels: Tensor, positions: Tensor) -> Tensor:
        """The sum of the valid tokens' losses, a fp32 scalar."""
        return self.loss(self.logits(tokens, positions), labels)


LEAVES = (Linear, Embedding, RMSNorm, RotaryTables, Rotate, Core, Loss)
