"""Messages of format version 1 are decoded by every later version: none may be changed or lost."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch
from make import HERE, MESSAGES, Request, describe, read_frames

import mmlab
from mmlab.wire import read_envelope

INDEX = json.loads((HERE / "v1.json").read_text())


def expected(name: str) -> object:
    return INDEX[name]["holds"]


@pytest.mark.parametrize("copy", [False, True], ids=["borrowed", "copied"])
def test_every_golden_message_decodes_to_what_it_held(copy: bool) -> None:
    for name in INDEX:
        frames = read_frames(HERE / f"v1-{name}.bin")
        type_ = Request if name == "request" else None
        got = mmlab.Decoder(type_, copy=copy).decode(frames)
        assert describe(got) == expected(name), name


def test_the_envelopes_say_what_they_said() -> None:
    for name, entry in INDEX.items():
        found = read_envelope(read_frames(HERE / f"v1-{name}.bin")[0])
        assert (found.version, found.kind, found.request_id) == (
            *(1, entry["kind"], entry["request_id"]),
        ), name


def test_no_golden_file_is_missing_or_unknown() -> None:
    assert {f"v1-{name}.bin" for name in INDEX} == {path.name for path in HERE.glob("v1-*.bin")}
    assert set(MESSAGES) == set(INDEX)


def test_golden_files_are_the_committed_ones() -> None:
    """A file that was written again by a newer encoder would prove nothing."""
    digests = {}
    for path in sorted(HERE.glob("v1-*.bin")):
        digests[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digests == json.loads((HERE / "v1.sha256.json").read_text())


def test_todays_encoder_still_writes_what_todays_decoder_reads() -> None:
    for name, (make, threshold, _, _) in MESSAGES.items():
        frames = mmlab.Encoder(threshold).encode(make())
        got = mmlab.Decoder(Request if name == "request" else None).decode(frames)
        assert describe(got) == expected(name), name


def test_a_message_of_a_later_version_is_a_clear_error() -> None:
    frames = read_frames(HERE / "v1-batched.bin")
    frames[0] = frames[0][:4] + b"\x02" + frames[0][5:]
    with pytest.raises(mmlab.WireError, match="format version 2, this mmlab reads version 1"):
        mmlab.Decoder().decode(frames)


def test_golden_items_reduce() -> None:
    got = mmlab.Decoder().decode(read_frames(HERE / "v1-batched.bin"))
    kwargs = got.reduce()  # type: ignore[attr-defined]
    assert kwargs["pixel_values"].shape == (3, 2, 4) and kwargs["patches"].dtype is torch.float16
