"""The messages of `mmlab bench wire`, built for mmlab and, where it is installed, for vLLM.

Both sides get the same tensors. Frames are turned into bytes before they are decoded, as a socket
delivers them. mmlab's decode of kwargs items includes the finished batch. vLLM's includes it for
one item, where it copies nothing, and leaves it out for several: there it is a copy of the
payload, which is no cost of the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import msgspec
import torch

from mmlab.fields import BatchedField, FieldElem, KwargsItem, KwargsItems, batched, flat, shared
from mmlab.wire import Buffer, Decoder, Encoder

if TYPE_CHECKING:
    from mmlab.bench.peers.vllm_wire import PeerItems, VllmWire

Op = Callable[[], object]
OWN, PEER, PLAIN = "mmlab", "vllm", "msgspec"  # PLAIN: msgspec alone, for text


@dataclass
class Case:
    """One message. `ops`: (who, "encode" or "decode") -> a call to time."""

    name: str
    tensors: int = 0
    tensor_nbytes: int = 0
    ops: dict[tuple[str, str], Op] = field(default_factory=dict)
    header_nbytes: dict[str, int] = field(default_factory=dict)  # frame 0, by who
    payload_nbytes: dict[str, int] = field(default_factory=dict)  # all other frames
    frames: dict[str, int] = field(default_factory=dict)

    def add(
        self,
        who: str,
        encode: Callable[[], Sequence[Buffer]],
        decode: Callable[[Sequence[Buffer]], object],
    ) -> None:
        """Both directions of one side, run once to know the sizes."""
        received = [bytes(frame) for frame in encode()]
        self.header_nbytes[who] = len(received[0])
        self.payload_nbytes[who] = sum(map(len, received[1:]))
        self.frames[who] = len(received)
        self.ops[who, "encode"] = encode
        self.ops[who, "decode"] = lambda: decode(received)
        decode(received)


class TextRequest(msgspec.Struct):
    """A request without multimodal inputs, with the fields a serving engine sends."""

    request_id: str
    prompt: str
    prompt_token_ids: list[int]
    max_tokens: int
    temperature: float
    stop: list[str]
    arrival_time: float
    metadata: dict[str, str]


def table_cases(peer: VllmWire | None) -> Iterator[Callable[[], Case]]:
    """The messages of the table, each built only when its turn comes (they hold up to 154 MB)."""
    yield lambda: text_case(peer)
    yield lambda: batched_case("32 images bf16, batched", _images(), peer)
    for n in (256, 1024):
        yield lambda n=n: flat_case(n, peer)  # type: ignore[misc]
    yield lambda: shared_case(64, 1 << 20, peer)
    yield lambda: tensors_case("1,000 tensors of 128 B", [torch.randn(32) for _ in _K], peer)
    yield lambda: tensors_case("1,000 tensors of 4 KB", [torch.randn(1024) for _ in _K], peer)
    yield lambda: tensors_case("1,000 mixed, 2 to 400 B", _mixed(1, 50), peer)
    yield lambda: tensors_case("1,000 mixed, 2 to 8 KB", _mixed(1000, 50), peer)


def sweep_cases(peer: VllmWire | None, largest: int = 64 << 20) -> Iterator[Callable[[], Case]]:
    """1 to 64 items of 16 B to `largest` bytes: views of one batch, separate, and bare tensors."""
    nbytes = 16
    while nbytes <= largest:
        for n in (1, 4, 16, 64):
            if n * nbytes <= max(largest, 256 << 20):
                yield lambda n=n, b=nbytes: sweep_case("one batch", n, b, peer)  # type: ignore[misc]
                yield lambda n=n, b=nbytes: sweep_case("separate", n, b, peer)  # type: ignore[misc]
                yield lambda n=n, b=nbytes: sweep_case("tensors", n, b, peer)  # type: ignore[misc]
        nbytes *= 4


_K = range(1000)


def _images() -> torch.Tensor:
    return torch.randn(32, 3, 896, 896).bfloat16()


def _mixed(smallest: int, steps: int) -> list[torch.Tensor]:
    dtypes = (torch.float32, torch.bfloat16, torch.int64)
    return [torch.ones(smallest + i % steps, dtype=dtypes[i % 3]) for i in _K]


def text_case(peer: VllmWire | None) -> Case:
    """A text-only request; plain msgspec beside it is the limit."""
    request = TextRequest(
        "cmpl-8f14e45fceea167a5a36dedd4bea2543",
        "Describe the pages of this document and list what they have in common. " * 4,
        list(range(1000, 1080)),
        256,
        0.7,
        ["\n\n", "END"],
        1760000000.25,
        {"user": "u-17", "route": "eu-west", "tier": "batch"},
    )
    case = Case("text-only request")
    plain, reader = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(TextRequest)
    case.add(PLAIN, lambda: [plain.encode(request)], lambda frames: reader.decode(frames[0]))
    encoder, decoder = Encoder(), Decoder(TextRequest)
    case.add(OWN, lambda: encoder.encode(request), decoder.decode)
    if peer is not None:
        case.add(PEER, _encode(peer, request), peer.decoder(TextRequest).decode)
    return case


def batched_case(name: str, data: torch.Tensor, peer: VllmWire | None) -> Case:
    """`len(data)` items of one batched key, cut from one batch."""
    items = KwargsItems.from_processor({"pixel_values": data}, {"pixel_values": batched("image")})
    theirs = peer.batched("pixel_values", data) if peer else None
    return _items_case(Case(name, len(data), data[0].nbytes), items, theirs, peer)


def flat_case(n: int, peer: VllmWire | None) -> Case:
    """`n` items of 4 patches of 768 float32 values each."""
    data, sizes = torch.randn(4 * n, 768), [4] * n
    items = KwargsItems.from_processor({"patches": data}, {"patches": flat("image", sizes=sizes)})
    theirs = peer.flat("patches", data, sizes) if peer else None
    return _items_case(Case(f"flat field, {n:,} items", n, 4 * 768 * 4), items, theirs, peer)


def shared_case(n: int, nbytes: int, peer: VllmWire | None) -> Case:
    """One tensor that `n` items share."""
    data = torch.randn(nbytes // 4)
    items = KwargsItems.from_processor({"grid": data}, {"grid": shared("image", n)})
    theirs = peer.shared("grid", data, n) if peer else None
    return _items_case(Case(f"shared field, {n} x 1 MiB", n, nbytes), items, theirs, peer)


def tensors_case(name: str, tensors: list[torch.Tensor], peer: VllmWire | None) -> Case:
    """A plain list of tensors."""
    encoder, decoder = Encoder(), Decoder(list[torch.Tensor])
    case = Case(name, len(tensors), tensors[0].nbytes)
    case.add(OWN, lambda: encoder.encode(tensors), decoder.decode)
    if peer is not None:
        case.add(PEER, _encode(peer, tensors), peer.decoder(list[torch.Tensor]).decode)
    return case


def sweep_case(form: str, n: int, nbytes: int, peer: VllmWire | None) -> Case:
    """`n` float32 tensors of `nbytes` each, in one of the three forms of `sweep_cases`."""
    data = torch.randn(n, nbytes // 4)
    if form == "one batch":
        return batched_case(form, data, peer)
    parts = [part.clone() for part in data]
    if form == "tensors":
        return tensors_case(form, parts, peer)
    items = KwargsItems(
        {"image": [KwargsItem({"x": FieldElem(part, BatchedField())}) for part in parts]}
    )
    theirs = peer.separate("x", parts) if peer else None
    return _items_case(Case(form, n, nbytes), items, theirs, peer)


def _items_case(case: Case, items: KwargsItems, theirs: object, peer: VllmWire | None) -> Case:
    encoder, decoder = Encoder(), Decoder(KwargsItems)

    def decode(frames: Sequence[Buffer]) -> object:
        decoded = decoder.decode(frames)
        assert isinstance(decoded, KwargsItems)
        # separate items form no batch without a copy: then every elem is made, as vLLM makes them
        if case.name == "separate":
            return [item["x"].data for item in decoded["image"] if item is not None]
        return decoded.reduce()

    case.add(OWN, lambda: encoder.encode(items), decode)
    if peer is not None:
        theirs_of = peer.decoder("items").decode
        if case.name == "one batch" and case.tensors == 1:
            case.add(
                PEER, _encode(peer, theirs), lambda f: cast("PeerItems", theirs_of(f)).get_data()
            )
        else:
            case.add(PEER, _encode(peer, theirs), theirs_of)
    return case


def _encode(peer: VllmWire, value: object) -> Callable[[], Sequence[Buffer]]:
    encoder = peer.encoder()
    return lambda: encoder.encode(value)
