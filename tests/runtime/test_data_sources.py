"""Texts, token files and files of sequences: what is read of them, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from schedc.diagnostics import DiagnosticError
from schedc.runtime.data import Batches, open_data


def opened(*paths: Path, sequence: int = 4, batch: int = 1, **options: object) -> Batches:
    arguments: dict[str, object] = {"vocabulary": 256, "seed": 0}
    if any(path.suffix != ".safetensors" for path in paths):
        arguments["shuffle"] = False
    arguments |= options
    return open_data(paths, sequence=sequence, batch=batch, **arguments)  # type: ignore[arg-type]


def refusal_of(*paths: Path, **options: object) -> str:
    with pytest.raises(DiagnosticError) as caught:
        opened(*paths, **options).batch(0)  # type: ignore[arg-type]
    assert {d.code for d in caught.value.diagnostics} == {"E902"}
    return str(caught.value)


def all_tokens(batches: Batches) -> list[int]:
    """The stream that the windows were cut from."""
    windows = [batches.source.read(index) for index in range(batches.sequences)]
    return [*(int(token) for ids, _ in windows for token in ids), int(windows[-1][1][-1])]


# Text


def test_text_is_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "ä b.txt"
    path.write_bytes("naïve\r\n".encode())
    assert all_tokens(opened(path)) == list("naïve\r\n".encode())


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.md").write_text("two")
    (tmp_path / "a.py").write_text("one")
    (tmp_path / "c").write_text("three")
    # Left out: binary, empty, hidden, caches and installed packages; all of it said.
    (tmp_path / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 au lait")
    (tmp_path / "empty.txt").touch()
    (tmp_path / ".hidden").write_text("no")
    for name in ("__pycache__", "site-packages", ".git"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.txt").write_text("no")
    (tmp_path / "loop").symlink_to(tmp_path)
    batches = opened(tmp_path)
    # Between two files stands one byte 0, which no text holds.
    assert bytes(all_tokens(batches)) == b"one\0two\0three"
    assert "3 text files" in batches.summary
    assert "binary files 2, empty files 1" in batches.summary
    assert "caches, links) 4" in batches.summary
    assert "hidden files 1" in batches.summary


def test_windows_cross_files_anywhere(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / str(number)).write_text(str(number) * (number + 1))
    stream = b"\0".join(str(n).encode() * (n + 1) for n in range(5))
    for sequence in range(1, len(stream) + 2):
        assert bytes(all_tokens(opened(tmp_path, sequence=sequence))) == stream


def test_a_character_cut_by_the_first_8_kib_is_text(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_bytes(b"a" * 8191 + "é".encode() * 10)
    assert opened(path).source.valid(0) == 4


def test_text_that_cannot_be_used(tmp_path: Path) -> None:
    empty, binary, single = tmp_path / "e.txt", tmp_path / "b.txt", tmp_path / "s.txt"
    empty.touch()
    binary.write_bytes(b"\0\1\2")
    single.write_text("x")
    message = refusal_of(empty, binary)
    assert "e.txt is empty" in message
    assert "b.txt is not text" in message
    assert "1 token" in refusal_of(single)
    assert "256, the model's is 67" in refusal_of(single, vocabulary=67)
    folder = tmp_path / "folder"
    folder.mkdir()
    assert "no text in folder" in refusal_of(folder)
    (folder / "tokens.bin").write_bytes(b"\0\1\2\3")
    assert "no text in folder" in refusal_of(folder)


def test_a_text_that_shrinks_during_the_run_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a long enough text")
    batches = opened(path)
    path.write_text("short")
    with pytest.raises(DiagnosticError, match="had 18 bytes"):
        batches.batch(2)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """Words to ids, <s> before each document; truncation and padding set, as some files have it."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = {"<s>": 0, "<unk>": 1, "one": 2, "two": 3, "three": 4, "four": 5}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    made.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    made.enable_truncation(2)
    made.enable_padding(length=64)
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    return folder


def test_text_through_a_tokenizer(tmp_path: Path, tokenizer: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a").write_text("one two three")
    (texts / "b").write_text("four five")
    batches = opened(texts, tokenizer=tokenizer, vocabulary=6)
    assert all_tokens(batches) == [0, 2, 3, 4, 0, 5, 1]
    file = tokenizer / "tokenizer.json"
    assert all_tokens(opened(texts, tokenizer=file, vocabulary=6)) == [0, 2, 3, 4, 0, 5, 1]


def test_tokenizers_that_do_not_fit(tmp_path: Path, tokenizer: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("one four")
    message = refusal_of(text, tokenizer=tokenizer, vocabulary=5)
    assert "token 5 ('four')" in message
    assert "5 ids" in message
    assert "there is no tokenizer" in refusal_of(text, tokenizer=tmp_path / "none.json")
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    assert "cannot read tokenizer" in refusal_of(text, tokenizer=broken)
    text.write_bytes(b"a" * 9000 + b"\xff")
    assert "not UTF-8 at byte 9000" in refusal_of(text, tokenizer=tokenizer)


# Token files


def test_raw_token_files_of_both_widths(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    np.array([5, 300, 65535, 7], dtype="<u2").tofile(path)
    assert all_tokens(opened(path, vocabulary=65536)) == [5, 300, 65535, 7]
    np.array([5, 128_000, 7], dtype="<u4").tofile(path)
    # uint32 without being told for a vocabulary that uint16 cannot hold, else when told.
    assert all_tokens(opened(path, vocabulary=128_256)) == [5, 128_000, 7]
    np.array([5, 200, 7], dtype="<u4").tofile(path)
    assert all_tokens(opened(path, dtype="uint32")) == [5, 200, 7]


def with_header(magic: int, version: int, tokens: NDArray[np.integer], said: int) -> bytes:
    """A file as llm.c's dev/data/data_common.py writes it: 256 int32, then the tokens."""
    header = np.zeros(256, dtype="<i4")
    header[:3] = magic, version, said
    return header.tobytes() + tokens.tobytes()


def test_headers_tell_the_width(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    path.write_bytes(with_header(20240520, 1, np.array([1, 2, 3], "<u2"), 3))
    assert all_tokens(opened(path)) == [1, 2, 3]
    path.write_bytes(with_header(20240801, 7, np.array([1, 2, 3], "<u4"), 3))
    assert all_tokens(opened(path)) == [1, 2, 3]
    path.write_bytes(with_header(20240801, 7, np.array([1, 2, 3], "<u4"), 4))
    assert "says 4 uint32 tokens, the file holds 3" in refusal_of(path)


def test_several_token_files_are_one_stream(tmp_path: Path) -> None:
    paths = [tmp_path / "b.bin", tmp_path / "a.bin"]
    for number, path in enumerate(paths):
        np.arange(10 * number, 10 * number + 3, dtype="<u2").tofile(path)
    assert all_tokens(opened(*paths)) == [0, 1, 2, 10, 11, 12]


def test_token_files_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    path.write_bytes(b"")
    assert "t.bin is empty" in refusal_of(path)
    path.write_bytes(b"abc")
    assert "3 bytes" in refusal_of(path)
    np.array([1, 2, 3, 256, 4], dtype="<u2").tofile(path)
    message = refusal_of(path)
    assert f"{path}[3] is 256" in message
    assert "256 ids, 0 to 255" in message


# Files of sequences


def sequence_file(path: Path, **tensors: NDArray[np.generic]) -> Path:
    save_file(tensors, path)
    return path


def test_sequences_in_order_shifted_as_in_hugging_face(tmp_path: Path) -> None:
    ids = np.arange(12, dtype=np.int64).reshape(3, 4)
    labels = ids + 100
    labels[0] = [-100, -100, 102, 103]
    labels[1] = -100
    path = sequence_file(tmp_path / "s.safetensors", input_ids=ids, labels=labels)
    batches = opened(path, batch=3)
    found, shifted = batches.batch(0)
    assert found.tolist() == ids.tolist()
    assert shifted.tolist() == [
        [-100, 102, 103, -100],
        [-100, -100, -100, -100],
        [109, 110, 111, -100],
    ]
    assert [batches.valid(0, range(row, row + 1)) for row in range(3)] == [2, 0, 3]
    assert not batches.shuffle


def test_the_shift_is_hugging_faces(tmp_path: Path) -> None:
    # transformers' own loss on unshifted labels equals ours on shifted ones, summed over 'valid'.
    import torch
    from transformers.loss.loss_utils import ForCausalLMLoss

    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 11, (3, 6), generator=generator)
    labels = ids.clone()
    labels[0, :4] = -100
    logits = torch.randn(3, 6, 11, generator=generator)
    path = sequence_file(tmp_path / "s.safetensors", input_ids=ids.numpy(), labels=labels.numpy())
    batches = opened(path, batch=3, sequence=6, vocabulary=11)
    _, shifted = batches.batch(0)
    ours = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), shifted.flatten(), ignore_index=-100, reduction="sum"
    )
    theirs = ForCausalLMLoss(logits=logits, labels=labels, vocab_size=11)
    torch.testing.assert_close(ours / batches.valid(0, range(3)), theirs)


def test_without_labels_the_ids_are_the_labels(tmp_path: Path) -> None:
    ids = np.arange(8, dtype=np.int32).reshape(2, 4)
    batches = opened(sequence_file(tmp_path / "s.safetensors", input_ids=ids), batch=2)
    assert batches.batch(0)[1].tolist() == [[1, 2, 3, -100], [5, 6, 7, -100]]


def test_several_files_of_shorter_sequences(tmp_path: Path) -> None:
    one = sequence_file(tmp_path / "1.safetensors", input_ids=np.full((1, 4), 9, np.int64))
    two = sequence_file(tmp_path / "2.safetensors", input_ids=np.full((2, 2), 8, np.uint16))
    ids, labels = opened(one, two, batch=4).batch(0)
    assert ids.tolist() == [[9, 9, 9, 9], [8, 8, 0, 0], [8, 8, 0, 0], [9, 9, 9, 9]]
    assert labels[1].tolist() == [8, -100, -100, -100]


def test_files_of_sequences_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    ids = np.zeros((2, 4), np.int64)
    path.write_bytes(b"not one")
    assert "no safetensors file" in refusal_of(path)
    sequence_file(path, input_ids=ids, attention_mask=ids)
    assert "it holds attention_mask, input_ids" in refusal_of(path)
    sequence_file(path, labels=ids)
    assert "has to hold input_ids" in refusal_of(path)
    sequence_file(path, input_ids=ids, labels=np.zeros((2, 3), np.int64))
    assert "input_ids are [2, 4], labels [2, 3]" in refusal_of(path)
    sequence_file(path, input_ids=ids[0])
    assert "shape [N, S]" in refusal_of(path)
    sequence_file(path, input_ids=ids.astype(np.float32))
    assert "it is F32" in refusal_of(path)
    sequence_file(path, input_ids=np.zeros((0, 4), np.int64))
    assert "is empty" in refusal_of(path)
    sequence_file(path, input_ids=np.zeros((2, 5), np.int64))
    assert "sequences of 5, the plan is compiled for 4" in refusal_of(path)
    wrong = ids.copy()
    wrong[1, 2] = 256
    sequence_file(path, input_ids=wrong)
    assert "input_ids[1, 2] is 256" in refusal_of(path)
    wrong[1, 2] = -1
    sequence_file(path, input_ids=ids, labels=wrong)
    assert "labels[1, 2] is -1" in refusal_of(path)
