"""The keys of a ``config.json``: those that are honoured, and those of no consequence.

Any other key is refused by name: it may change the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schedc.model.config import ModelType

# Keys that say nothing about training's numbers: provenance, storage, serving, labels of
# classifiers, generation (which older transformers write into a model's configuration).
# fmt: off
INERT = frozenset((
    "_attn_implementation", "_attn_implementation_autoset", "_name_or_path", "architectures",
    "attn_implementation", "auto_map", "dtype", "finetuning_task", "is_decoder",
    "is_llama_config", "prefix", "task_specific_params", "tokenizer_class", "torch_dtype",
    "transformers_version", "unsloth_fixed", "unsloth_version", "use_bfloat16",

    "chunk_size_feed_forward", "output_attentions", "output_hidden_states", "output_scores",
    "return_dict", "return_dict_in_generate", "tf_legacy_loss", "torchscript", "use_cache",
    "use_return_dict",

    "id2label", "label2id", "num_labels", "problem_type",

    "bad_words_ids", "begin_suppress_tokens", "decoder_start_token_id", "diversity_penalty",
    "do_sample", "early_stopping", "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id",
    "length_penalty", "max_length", "max_new_tokens", "min_length", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_return_sequences", "remove_invalid_values",
    "repetition_penalty", "sep_token_id", "suppress_tokens", "temperature", "top_k", "top_p",
    "typical_p",
))
# fmt: on

# Keys that only one value of can be honoured, and that value (the first of those that mean it).
ONLY: dict[str, tuple[object, ...]] = {
    "add_cross_attention": (False,),
    "attention_dropout": (0.0, None),
    "cross_attention_hidden_size": (None,),
    "hidden_act": ("silu",),
    "is_encoder_decoder": (False,),
    "partial_rotary_factor": (1.0, None),
    "pretraining_tp": (1, None),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "rope_interleaved": (False, None),
    "tie_encoder_decoder": (False,),
    "use_mrope": (False,),
}

REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)
SIZES = (
    *REQUIRED,
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "sliding_window",
)
NUMBERS = ("rms_norm_eps", "initializer_range", "rope_theta")
FLAGS = ("attention_bias", "mlp_bias", "tie_word_embeddings", "use_sliding_window")
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
ROPE = ("rope_scaling", "rope_parameters")
LAYERS = ("layer_types", "max_window_layers")
KNOWN = frozenset(("model_type", *INERT, *ONLY, *SIZES, *NUMBERS, *FLAGS, *TOKENS, *ROPE, *LAYERS))


@dataclass(frozen=True, slots=True)
class Family:
    """What transformers takes for keys left out, and keys that it does not look at.

    ``ignored`` maps those to the one value that agrees with what transformers does.
    """

    max_position_embeddings: int
    num_key_value_heads: int | None = None  # None: as many as there are heads
    head_dim: int | None = None  # None: hidden_size / num_attention_heads
    sliding_window: int | None = None
    ignored: dict[str, tuple[object, ...]] = field(default_factory=dict[str, tuple[object, ...]])


FAMILIES: dict[ModelType, Family] = {
    "llama": Family(
        2048,
        ignored={
            "sliding_window": (None,),
            "use_sliding_window": (False, None),
            "layer_types": (None,),
        },
    ),
    "mistral": Family(
        131072,
        num_key_value_heads=8,
        sliding_window=4096,
        ignored={
            "attention_bias": (False, None),
            "mlp_bias": (False, None),
            "use_sliding_window": (None,),
            "layer_types": (None,),
        },
    ),
    "qwen2": Family(
        32768,
        num_key_value_heads=32,
        sliding_window=4096,
        ignored={"attention_bias": (False, None), "mlp_bias": (False, None)},
    ),
    "qwen3": Family(
        32768,
        num_key_value_heads=32,
        head_dim=128,
        sliding_window=4096,
        ignored={"mlp_bias": (False, None)},
    ),
}
