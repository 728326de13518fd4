"""Serializers of requests, and the one that unpickles behind its switch."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from pipeline_parts import ROOT, images

import mmlab
from mmlab import EncodeError, KwargsItems, UsageError, WireError, batched
from mmlab.pipeline.checksum import checksum_items
from mmlab.pipeline.messages import Kind, Request
from mmlab.pipeline.serializers import Serializer, check_serializer, make_serializer
from mmlab.pixels import Step
from mmlab.staging import PinnedBatcher
from mmlab.transports import Buffer
from mmlab.wire import read_envelope

NAMES = ("pickle", "msgpack-inline", "msgpack")


def serializer(name: str, max_nbytes: int = 1 << 30) -> Serializer:
    return make_serializer(name, insecure_pickle=True, private=True, max_nbytes=max_nbytes)


def nbytes(frames: list[Buffer]) -> int:
    return sum(memoryview(frame).nbytes for frame in frames)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("items", [None, images(3)], ids=["text", "images"])
def test_a_request_comes_back_as_it_was(name: str, items: KwargsItems | None) -> None:
    frames = serializer(name).dumps(Request([1, 2, 3], 4, items), 77)
    envelope = read_envelope(frames[0])
    assert (envelope.kind, envelope.request_id) == (Kind.REQUEST, 77)
    request = serializer(name).loads(frames)
    assert request.token_ids == [1, 2, 3] and request.max_new_tokens == 4
    assert (request.mm is None) == (items is None)
    assert checksum_items(request.mm) == checksum_items(items)


@pytest.mark.parametrize("name", NAMES)
def test_every_serializer_carries_the_steps_of_raw_pixels(name: str) -> None:
    steps = {"image": (Step("sub", (127.5,)), Step("div", (0.1, 0.2, 0.3)))}
    for items in (None, images(2)):
        request = Request([1], 2, items, steps)
        frames = [bytes(frame) for frame in serializer(name).dumps(request, 7)]
        assert serializer(name).loads(frames).steps == steps


def test_what_each_serializer_puts_on_the_wire() -> None:
    items = images(4, shape=(3, 64, 64))
    payload = items.nbytes
    sizes = {}
    for name in NAMES:
        frames = serializer(name).dumps(Request([], 0, items), 1)
        sizes[name] = [memoryview(frame).nbytes for frame in frames]
    assert sizes["msgpack"][1:] == [payload] and sizes["msgpack"][0] < 1024
    assert len(sizes["msgpack-inline"]) == 1
    assert payload < sizes["msgpack-inline"][0] < payload + 1024
    assert len(sizes["pickle"]) == 2 and sizes["pickle"][0] < 256


def test_out_of_band_frames_are_the_processors_own_memory() -> None:
    pixels = torch.rand(2, 3, 64, 64)
    items = KwargsItems.from_processor({"pixel_values": pixels}, {"pixel_values": batched("image")})
    frame = memoryview(serializer("msgpack").dumps(Request([], 0, items), 1)[1])
    address = torch.frombuffer(frame, dtype=torch.uint8).data_ptr()
    assert address == pixels.data_ptr()


@pytest.mark.parametrize("name", ["msgpack", "msgpack-inline"])
def test_a_request_of_its_own_is_a_batch_without_a_copy_on_the_engines_side(name: str) -> None:
    items = images(2, shape=(3, 64, 64))
    frames = [bytes(f) for f in serializer(name).dumps(Request([], 0, items), 1)]
    request = serializer(name).loads(frames)
    assert request.mm is not None
    with PinnedBatcher("cpu", mode="pageable") as batcher:
        staged = batcher.stage(request.mm.pairs())
        pixels = staged.kwargs["pixel_values"]
    assert isinstance(pixels, torch.Tensor) and staged.copies == 0
    start = np.frombuffer(frames[-1], np.uint8).__array_interface__["data"][0]
    offset = len(frames[-1]) - items.nbytes
    assert 0 <= pixels.data_ptr() - start <= offset and offset < 1024


@pytest.mark.parametrize("count", [2, 4, 8])
def test_pickled_views_drag_their_whole_batch(count: int) -> None:
    items = images(count, shape=(3, 64, 64))
    frames = serializer("pickle").dumps(Request([], 0, items), 1)
    assert 0 <= nbytes(frames) - count * items.nbytes < count * 2048
    back = serializer("pickle").loads(frames).mm
    assert back is not None
    item = back["image"][0]
    assert item is not None
    data = item["pixel_values"].data
    assert isinstance(data, torch.Tensor)
    assert data.untyped_storage().nbytes() == items.nbytes


def test_pickle_is_refused_unless_it_was_allowed_and_is_private() -> None:
    with pytest.raises(UsageError, match="insecure_pickle=True"):
        check_serializer("pickle", insecure_pickle=False, private=True)
    with pytest.raises(UsageError, match="private directory"):
        check_serializer("pickle", insecure_pickle=True, private=False)
    with pytest.raises(UsageError, match="unknown serializer 'json'"):
        check_serializer("json", insecure_pickle=True, private=True)
    for name in ("msgpack", "msgpack-inline"):
        check_serializer(name, insecure_pickle=False, private=False)


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_carried_is_an_encode_error(name: str) -> None:
    if name == "pickle":
        pytest.skip("the peer carries whatever pickle can: that is what it stands for")
    sparse = torch.eye(3).to_sparse()
    items = KwargsItems.from_processor({"x": [sparse]}, {"x": batched("image")})
    with pytest.raises(EncodeError, match=r"mm\.image\[0\]\.x|image\[0\]\.x|x.*sparse"):
        serializer(name).dumps(Request([], 0, items), 1)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_request_is_a_wire_error(name: str) -> None:
    frames = serializer(name).dumps(Request([1], 1, images(2)), 1)
    first = bytes(frames[0])
    for bad in ([], [b""], [first[:20]], [first + b"x"], [first, b"not"] if frames[1:] else []):
        with pytest.raises(WireError):
            serializer(name).loads(bad)  # type: ignore[arg-type]


def test_a_message_over_the_limit_is_refused() -> None:
    frames = serializer("msgpack").dumps(Request([], 0, images(4)), 1)
    with pytest.raises(WireError, match="at most 1000"):
        serializer("msgpack", max_nbytes=1000).loads(frames)


def test_nothing_outside_the_peers_unpickles() -> None:
    """R24: the receiving path has no way to run code; what has one stands apart."""
    words = re.compile(
        r"pickle\.loads?\b|Unpickler|recv_pyobj|torch\.load\b|\bmarshal\b|cloudpickle"
    )
    package = ROOT / "mmlab"
    found = {
        path.relative_to(package)
        for path in package.rglob("*.py")
        if words.search(path.read_text(encoding="utf-8"))
    }
    assert Path("bench/peers/pickle.py") in found
    assert {path.parent for path in found} == {Path("bench/peers")}


def test_importing_mmlab_or_its_pipeline_imports_no_peer() -> None:
    import subprocess
    import sys

    code = (
        "import sys, mmlab, mmlab.pipeline.child;"
        "print([name for name in sys.modules if name.startswith(('mmlab.bench', 'transformers'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == "[]"
    assert mmlab.__version__
