"""The model's configuration and how it is written as Hugging Face's ``config.json``; presets.

A Llama, or what differs from it in a few fields only: Mistral, Qwen2, Qwen3.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar, Literal

ModelType = Literal["llama", "mistral", "qwen2", "qwen3"]
ARCHITECTURES: dict[ModelType, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by ``factor``."""

    kind: ClassVar[str] = "linear"
    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's stretching of the rotary wavelengths."""

    kind: ClassVar[str] = "llama3"
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (arXiv:2309.00071): wavelengths stretched by a ramp between two numbers of turns.

    ``attention_factor`` multiplies the rotary tables, and thereby scales the attention scores.
    """

    kind: ClassVar[str] = "yarn"
    factor: float
    original_max_position_embeddings: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """A Llama's shape and numbers, by Hugging Face's names.

    ``sliding_window`` is how many positions back a query sees, None for all; ``layer_types`` tells
    which layers that holds for, None for all of them. Windows are not computed: no plan may have a
    sequence that is longer than one (:mod:`schedc.model.limits`).
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    model_type: ModelType = "llama"
    rms_norm_eps: float = 1e-6
    initializer_range: float = 0.02
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    sliding_window: int | None = None
    layer_types: tuple[str, ...] | None = None
    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None
    pad_token_id: int | None = None

    @property
    def qkv_bias(self) -> bool:
        """Whether queries, keys and values have biases: Qwen2's always have."""
        return self.attention_bias or self.model_type == "qwen2"

    @property
    def output_bias(self) -> bool:
        """Whether the attention's output projection has a bias."""
        return self.attention_bias

    @property
    def qk_norm(self) -> bool:
        """Whether each query and key head is normalised before it is rotated: Qwen3's are."""
        return self.model_type == "qwen3"

    def to_hf(self) -> dict[str, object]:
        """The whole configuration as ``config.json`` holds it, readable by any transformers."""
        eos = list(self.eos_token_id) if isinstance(self.eos_token_id, tuple) else self.eos_token_id
        return {
            "architectures": [ARCHITECTURES[self.model_type]],
            "model_type": self.model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "initializer_range": self.initializer_range,
            "max_position_embeddings": self.max_position_embeddings,
            "attention_dropout": 0.0,
            "tie_word_embeddings": self.tie_word_embeddings,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": eos,
            "pad_token_id": self.pad_token_id,
            **self._rope(),
            **self._of_type(),
        }

    def _rope(self) -> dict[str, object]:
        """Both spellings: transformers 4 reads the first two keys, 5 the third."""
        rope: dict[str, object] = {"rope_type": "default"}
        if self.rope_scaling is not None:
            rope = {"rope_type": self.rope_scaling.kind, **asdict(self.rope_scaling)}
        return {
            "rope_theta": self.rope_theta,
            "rope_scaling": rope if self.rope_scaling is not None else None,
            "rope_parameters": {"rope_theta": self.rope_theta, **rope},
        }

    def _of_type(self) -> dict[str, object]:
        """The keys that only some types of model have."""
        window: dict[str, object] = {"sliding_window": self.sliding_window}
        if self.model_type in ("qwen2", "qwen3"):
            window["use_sliding_window"] = self.sliding_window is not None
            window["max_window_layers"] = 0 if self.sliding_window else self.num_hidden_layers
            if self.layer_types is not None:
                window["layer_types"] = list(self.layer_types)
        match self.model_type:
            case "llama":
                return {"attention_bias": self.attention_bias, "mlp_bias": self.mlp_bias}
            case "mistral" | "qwen2":
                return window
            case "qwen3":
                return {"attention_bias": self.attention_bias, **window}


PRESETS = {
    "llama-tiny": LlamaConfig(
        vocab_size=256,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
    ),
    "llama-test": LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
    ),
}
