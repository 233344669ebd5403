"""Initialisation, and Hugging Face checkpoints in and out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from schedc.diagnostics import DiagnosticError
from schedc.program.signature import Parameter
from schedc.runtime import weights
from schedc.runtime.weights import initialise, read_checkpoint, write_checkpoint

CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,  # explicit, and not hidden_size / heads (A42)
    "vocab_size": 67,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "attention_bias": True,
    "mlp_bias": True,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def llama(layers: int = 3, tied: bool = False, dtype: str = "fp32") -> tuple[Parameter, ...]:
    """Parameters of a Llama of CONFIG: shapes by hand from A42 (q 128x64, k 64x64, o 64x128)."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (67, 64)}
    for layer in range(layers):
        at = f"model.layers.{layer}"
        shapes[f"{at}.input_layernorm.weight"] = (64,)
        for name, out, inner in (("q", 128, 64), ("k", 64, 64), ("v", 64, 64), ("o", 64, 128)):
            shapes[f"{at}.self_attn.{name}_proj.weight"] = (out, inner)
            shapes[f"{at}.self_attn.{name}_proj.bias"] = (out,)
        shapes[f"{at}.post_attention_layernorm.weight"] = (64,)
        for name, out, inner in (("gate", 96, 64), ("up", 96, 64), ("down", 64, 96)):
            shapes[f"{at}.mlp.{name}_proj.weight"] = (out, inner)
            shapes[f"{at}.mlp.{name}_proj.bias"] = (out,)
    shapes["model.norm.weight"] = (64,)
    if not tied:
        shapes["lm_head.weight"] = (67, 64)
    return tuple(
        Parameter(name, shape, dtype, "ones" if "norm" in name else "normal 0.02")
        for name, shape in shapes.items()
    )


def assert_equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


def read(
    folder: Path, parameters: tuple[Parameter, ...], wanted: list[str] | None = None
) -> dict[str, Tensor]:
    return read_checkpoint(folder, parameters, CONFIG, wanted)


def refusal_of(call: Callable[[], object]) -> str:
    with pytest.raises(DiagnosticError) as caught:
        call()
    assert {d.code for d in caught.value.diagnostics} == {"E903"}
    return str(caught.value)


# Initialisation


def test_initial_values_follow_name_and_seed_alone() -> None:
    whole = initialise(llama(), seed=0)
    # A rank that holds two layers, in another order, has the same values.
    part = [p for p in reversed(llama()) if ".layers.1." in p.name or ".layers.2." in p.name]
    for name, tensor in initialise(part, seed=0).items():
        assert torch.equal(tensor, whole[name])
    # Equal layers do not have equal values, nor do two seeds (torchtitan#514).
    first, second = (f"model.layers.{n}.self_attn.q_proj.weight" for n in (0, 1))
    assert not torch.equal(whole[first], whole[second])
    assert not torch.equal(whole[first], initialise(llama(), seed=1)[first])


def test_initial_values_do_not_touch_the_global_generator() -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    initialise(llama(), seed=0)
    assert torch.equal(torch.rand(3), wanted)


def test_initial_values_are_what_the_string_says() -> None:
    shape = (400, 500)
    found = initialise(
        [Parameter(f"p.{init}", shape, "fp32", init) for init in ("ones", "zeros", "normal 0.02")],
        seed=3,
    )
    assert torch.equal(found["p.ones"], torch.ones(shape))
    assert torch.equal(found["p.zeros"], torch.zeros(shape))
    # 200,000 draws: the mean's standard deviation is 0.02 / sqrt(200000) = 4.5e-5, that of the
    # standard deviation 0.02 / sqrt(400000) = 3.2e-5; five of each.
    assert abs(found["p.normal 0.02"].mean().item()) < 2.3e-4
    assert found["p.normal 0.02"].std().item() == pytest.approx(0.02, abs=1.6e-4)
    assert "'kaiming'" in refusal_of(
        lambda: initialise([Parameter("p", (1,), "fp32", "kaiming")], 0)
    )


def test_a_padding_row_is_zero_and_the_others_as_without() -> None:
    plain, padded = (
        initialise([Parameter("p", (8, 16), "bf16", f"normal 0.02{row}")], 0)["p"]
        for row in ("", " zero-row 3")
    )
    assert not padded[3].any()
    others = [row for row in range(8) if row != 3]
    assert torch.equal(padded[others], plain[others])


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_masters_are_fp32_whatever_the_model_computes_in(dtype: str) -> None:
    assert_equal(initialise(llama(dtype=dtype), 0), initialise(llama(), 0))


# In and out


@pytest.mark.parametrize("shard_bytes", [weights.SHARD_BYTES, 60_000, 1])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_what_is_written_is_read_bit_for_bit(tmp_path: Path, shard_bytes: int, dtype: str) -> None:
    # A35: every tensor bit-equal, layers in their order, whatever the shards.
    parameters = llama(dtype=dtype)
    values = {n: v.to(weights.DTYPES[dtype]) for n, v in initialise(parameters, 0).items()}
    folder = tmp_path / "out ä"
    write_checkpoint(folder, values, CONFIG, shard_bytes=shard_bytes)
    masters = read(folder, parameters)
    assert_equal(masters, {name: value.float() for name, value in values.items()})
    assert_equal({n: v.to(weights.DTYPES[dtype]) for n, v in masters.items()}, values)
    names = {path.name for path in folder.iterdir()}
    if shard_bytes == weights.SHARD_BYTES:
        assert names == {"config.json", "model.safetensors"}
    else:
        assert {"config.json", "model.safetensors.index.json"} < names
        shards = sorted(names - {"config.json", "model.safetensors.index.json"})
        count = len(shards)
        assert shards == [f"model-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]


@pytest.mark.parametrize("shard_bytes", [weights.SHARD_BYTES, 60_000])
@pytest.mark.parametrize("tied", [False, True])
def test_transformers_loads_what_is_written(tmp_path: Path, shard_bytes: int, tied: bool) -> None:
    from transformers import LlamaForCausalLM

    values = initialise(llama(tied=tied), 0)
    config = CONFIG | {"tie_word_embeddings": tied}
    write_checkpoint(tmp_path, values, config, shard_bytes=shard_bytes)
    model, report = LlamaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    state = model.state_dict()
    assert set(state) == set(values) | {"lm_head.weight"}
    for name, tensor in values.items():
        # fp32 as written, though the config of the run says bfloat16.
        assert state[name].dtype == torch.float32
        assert torch.equal(state[name], tensor), name
    head = "model.embed_tokens.weight" if tied else "lm_head.weight"
    assert torch.equal(state["lm_head.weight"], values[head])


@pytest.mark.parametrize("tied", [False, True])
def test_what_transformers_writes_is_read(tmp_path: Path, tied: bool) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = {k: v for k, v in CONFIG.items() if k not in ("architectures", "torch_dtype")}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig.from_dict(settings | {"tie_word_embeddings": tied}))
    model.save_pretrained(tmp_path / "in", max_shard_size="60KB")
    state = model.state_dict()
    parameters = llama(tied=tied)
    values = read(tmp_path / "in", parameters)
    assert_equal(values, {p.name: state[p.name] for p in parameters})
    # Out again: the files of transformers' own writer, tensor for tensor.
    write_checkpoint(tmp_path / "out", values, CONFIG)
    model.save_pretrained(tmp_path / "single")
    found, wanted = (load_file(tmp_path / at / "model.safetensors") for at in ("out", "single"))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_repeated_exports_are_the_same_bytes(tmp_path: Path) -> None:
    values = initialise(llama(), 0)
    for folder in ("one", "two"):
        write_checkpoint(tmp_path / folder, values, CONFIG, shard_bytes=60_000)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "two").iterdir())
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_views_strides_and_inference_tensors_are_written_as_they_read(tmp_path: Path) -> None:
    with torch.inference_mode():
        flat = torch.arange(24.0)
        tensors = {"a": flat[:12].view(3, 4), "b": flat[12:].view(3, 4).t(), "c": flat[:12]}
        write_checkpoint(tmp_path, tensors, CONFIG)
    file = tmp_path / "model.safetensors"
    # Others may read it as far as the user's umask lets them (safetensors alone makes it private).
    assert file.stat().st_mode == (tmp_path / "config.json").stat().st_mode
    found = load_file(file)
    assert torch.equal(found["a"], torch.arange(12.0).view(3, 4))
    assert torch.equal(found["b"], torch.arange(12.0, 24.0).view(3, 4).t())
    assert torch.equal(found["c"], torch.arange(12.0))


def test_only_what_is_wanted_is_read(tmp_path: Path) -> None:
    values = initialise(llama(), 0)
    write_checkpoint(tmp_path, values, CONFIG, shard_bytes=60_000)
    wanted = [name for name in values if ".layers.1." in name]
    found = read(tmp_path, llama(), wanted)
    assert_equal(found, {name: values[name] for name in wanted})
    # Its own memory: changing it changes neither the file nor a second reading.
    found[wanted[0]].zero_()
    assert torch.equal(read(tmp_path, llama())[wanted[0]], values[wanted[0]])


def test_narrow_numbers_are_widened_wide_ones_not_rounded(tmp_path: Path) -> None:
    values = initialise(llama(), 0)
    write_checkpoint(tmp_path, values, CONFIG)
    assert_equal(read(tmp_path, llama(dtype="bf16")), values)  # masters hold all of fp32
    write_checkpoint(tmp_path, {name: v.double() for name, v in values.items()}, CONFIG)
    message = refusal_of(lambda: read(tmp_path, llama()))
    assert "a dtype that would be rounded (51): " in message
    assert "model.embed_tokens.weight is fp64, masters are fp32" in message


def test_numbers_beyond_the_range_of_the_models_dtype_are_refused(tmp_path: Path) -> None:
    """fp16 ends at 65504: the model would compute with an infinite weight."""
    values = initialise(llama(), 0)
    values["model.norm.weight"][3] = -70000.0
    values["lm_head.weight"][0, 0] = float("inf")  # what is infinite already stays
    write_checkpoint(tmp_path, values, CONFIG)
    assert_equal(read(tmp_path, llama(dtype="bf16")), values)
    message = refusal_of(lambda: read(tmp_path, llama(dtype="fp16")))
    assert "beyond the range of fp16 (1): model.norm.weight" in message


# What is refused


def stored(folder: Path, tensors: dict[str, Tensor]) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_all_mismatches_are_named_at_once(tmp_path: Path) -> None:
    # A35: a checkpoint of another depth must never leave layers at random numbers.
    values = initialise(llama(layers=2), 0)
    values["model.norm.weight"] = torch.ones(65)
    values["model.layers.0.mlp.extra"] = torch.ones(1)
    folder = stored(tmp_path / "in", values)
    message = refusal_of(lambda: read(folder, llama(layers=3)))
    assert "missing parameters (16): model.layers.2.input_layernorm.weight, " in message
    assert "and 8 more" in message
    assert "parameters that the model has not (1): model.layers.0.mlp.extra" in message
    assert "model.norm.weight is [65], the plan's [64]" in message
    # More layers than the plan has: also an error.
    folder = stored(tmp_path / "in", initialise(llama(layers=4), 0))
    assert "parameters that the model has not (16): " in refusal_of(
        lambda: read(folder, llama(layers=3))
    )
    # A rank that wants one parameter only refuses like the others.
    refusal_of(lambda: read(folder, llama(layers=3), ["model.norm.weight"]))


def test_rotary_buffers_of_older_checkpoints_are_passed_over(tmp_path: Path) -> None:
    values = initialise(llama(), 0)
    extra = {f"model.layers.{n}.self_attn.rotary_emb.inv_freq": torch.ones(16) for n in range(3)}
    folder = stored(tmp_path / "in", values | extra)
    assert_equal(read(folder, llama()), values)


def test_heads_of_tied_and_untied_models(tmp_path: Path) -> None:
    # A42: a tied file with or without lm_head; an untied model never gets the embedding as head.
    tied = initialise(llama(tied=True), 0)
    folder = stored(tmp_path / "in", tied)
    assert_equal(read(folder, llama(tied=True)), tied)
    message = refusal_of(lambda: read(folder, llama()))
    assert "missing parameters (1): lm_head.weight" in message
    stored(folder, tied | {"lm_head.weight": tied["model.embed_tokens.weight"].clone()})
    assert_equal(read(folder, llama(tied=True)), tied)
    stored(folder, tied | {"lm_head.weight": tied["model.embed_tokens.weight"] + 1})
    assert "but the model ties them" in refusal_of(lambda: read(folder, llama(tied=True)))


def test_folders_that_are_no_checkpoints(tmp_path: Path) -> None:
    def message() -> str:
        return refusal_of(lambda: read(tmp_path, llama()))

    assert "there is no checkpoint folder" in refusal_of(lambda: read(tmp_path / "none", llama()))
    assert "holds neither model.safetensors nor" in message()
    index = tmp_path / "model.safetensors.index.json"
    for text in ("", "[]", "{}", '{"weight_map": []}'):
        index.write_text(text)
        assert "cannot read" in message()
    index.write_text(json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}}))
    assert "names files that" in message()
    (tmp_path.parent / "outside.safetensors").touch()
    index.write_text(json.dumps({"weight_map": {"a": "../outside.safetensors"}}))
    assert "names files that" in message()
    write_checkpoint(tmp_path, initialise(llama(), 0), CONFIG)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])  # a torn write
    assert "no valid safetensors file" in message()


# Replacing


@pytest.mark.parametrize("before", [weights.SHARD_BYTES, 60_000])
@pytest.mark.parametrize("after", [weights.SHARD_BYTES, 60_000, 30_000])
def test_an_export_replaces_the_one_before(tmp_path: Path, before: int, after: int) -> None:
    write_checkpoint(tmp_path, initialise(llama(), 0), CONFIG, shard_bytes=before)
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / f"{weights.STAGING}killed").mkdir()
    values = initialise(llama(), 1)
    write_checkpoint(tmp_path, values, CONFIG, shard_bytes=after)
    assert_equal(read(tmp_path, llama()), values)
    # Nothing of the old one is left, and nothing that is not ours is gone.
    write_checkpoint(tmp_path / "fresh", values, CONFIG, shard_bytes=after)
    fresh = {path.name for path in (tmp_path / "fresh").iterdir()}
    assert {p.name for p in tmp_path.iterdir()} == fresh | {"tokenizer.json", "fresh"}


@pytest.mark.parametrize("before", [weights.SHARD_BYTES, 200_000])
@pytest.mark.parametrize("after", [weights.SHARD_BYTES, 200_000])
def test_an_interrupted_export_never_leaves_a_mixture(
    tmp_path: Path, before: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = initialise(llama(), 0), initialise(llama(), 1)
    replace = weights.os.replace
    seen: set[str] = set()
    for survived in range(8):  # renames; there are 2 for one file, 5 or 6 for shards
        folder = tmp_path / str(survived)
        write_checkpoint(folder, old, CONFIG, shard_bytes=before)
        left = survived

        def torn(source: Path, target: Path) -> None:
            nonlocal left
            if not left:
                raise OSError(28, "No space left on device")
            left -= 1
            replace(source, target)

        monkeypatch.setattr(weights.os, "replace", torn)
        try:
            write_checkpoint(folder, new, CONFIG, shard_bytes=after)
            state = "done"
        except DiagnosticError:
            state = "torn"
        monkeypatch.setattr(weights.os, "replace", replace)
        try:
            found = read(folder, llama())
        except DiagnosticError:
            seen.add("nothing")
            assert state == "torn"
            continue
        whole = new if torch.equal(found["lm_head.weight"], new["lm_head.weight"]) else old
        seen.add("new" if whole is new else "old")
        assert_equal(found, whole)
        assert (whole is new) == (state == "done")
    assert "new" in seen
    assert len(seen) == 2


def test_what_is_not_a_models_is_not_overwritten(tmp_path: Path) -> None:
    values = initialise(llama(), 0)
    config = tmp_path / "config.json"
    for text in ('{"editor": "vim"}', "[]", "not json"):
        config.write_text(text)
        message = refusal_of(lambda: write_checkpoint(tmp_path, values, CONFIG))
        assert "would be overwritten" in message
        assert config.read_text() == text
        assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert "it is a file" in refusal_of(lambda: write_checkpoint(config, values, CONFIG))


def test_the_config_is_the_given_one_in_the_dtype_of_the_tensors(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, initialise(llama(), 0), CONFIG)
    written = json.loads((tmp_path / "config.json").read_text())
    wanted = {k: v for k, v in CONFIG.items() if k != "torch_dtype"} | {"dtype": "float32"}
    assert written == wanted
