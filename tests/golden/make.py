"""Writes the golden messages of this format version, each once: `python tests/golden/make.py`.

A message is a file `v1-NAME.bin` (its frames, each behind its length as u64) and an entry of
`v1.json` that says in plain words and hex what it holds. Files that exist are never written again:
what was sent once must be read for ever. A new version of the format gets files of its own.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import torch

import mmlab
from mmlab import BatchedField, FieldElem, FlatField, KwargsItem, KwargsItems, SharedField, dtypes

HERE = Path(__file__).parent
VERSION = 1


class Request(msgspec.Struct):
    prompt: str
    mm: KwargsItems | None
    embeds: torch.Tensor | None = None
    tokens: tuple[int, ...] = ()


def ramp(dtype: torch.dtype, *shape: int, start: int = 0) -> torch.Tensor:
    """Bytes that count up; 0 and 1 in turn for bool."""
    numel = int(np.prod(shape, dtype=np.int64))
    count = torch.arange(start, start + numel * dtype.itemsize)
    raw = (count % 2 if dtype is torch.bool else count).to(torch.uint8)
    return raw.view(dtype).reshape(shape) if numel else torch.empty(shape, dtype=dtype)


def item(**values: object) -> KwargsItem:
    return KwargsItem({key: FieldElem(value, BatchedField()) for key, value in values.items()})


def text() -> object:
    return {
        "prompt": "Describe the pages. ページ",
        "n": [0, -1, 1 << 63, 2.5, None, True],
        "b": b"\0\xff",
    }


def one_tensor() -> object:
    return ramp(torch.bfloat16, 3, 100)


def every_dtype() -> object:
    return [ramp(dtypes.TORCH_OF[code], 2, 3, start=code) for code in sorted(dtypes.TORCH_OF)]


def arrays() -> object:
    made: list[object] = []
    for code, dtype in sorted(dtypes.NUMPY_OF.items()):
        raw = np.arange(code, code + 4 * dtype.itemsize, dtype=np.uint8)
        made.append((raw % 2 if dtype.kind == "b" else raw).view(dtype).reshape(2, 2))
    return [*made, np.zeros((0, 3)), np.array(7, ">i2"), np.float32(0.5), np.str_("a")]


def values() -> object:
    return item(
        plain=[1, -2.5, "x", None, True],
        tuple=((1, 2), [3, (b"4",)]),
        size=torch.Size([2, 3]),
        dict={"a": 1, 2: {(3, "k"): []}, None: 1.5},
        slices=[slice(0, 4), slice(None, 9, 2)],
        dtypes=[torch.float8_e4m3fn, np.dtype(">i4")],
        numpy=[np.float32(0.5), np.int64(-3), np.bool_(False), np.str_("s"), np.bytes_(b"b")],
        bytearray=bytearray(b"xyz"),
        empty=[[], [[]], (), {}],
        tensors=[ramp(torch.int16, 2), (ramp(torch.float64, 1), np.arange(2, dtype="<i2"))],
    )


def batched() -> object:
    return KwargsItems.from_processor(
        {
            "pixel_values": ramp(torch.float32, 3, 2, 4),
            "grid": ramp(torch.int64, 3, 3),
            "patches": ramp(torch.float16, 7, 2),
            "seconds": ramp(torch.float64, 2),
            "names": ["a", ("b", 1), None],
            "array": np.arange(6, dtype=">i2").reshape(3, 2),
        },
        {
            "pixel_values": mmlab.batched("image"),
            "grid": mmlab.batched("image", keep_on_cpu=True, pad=-1),
            "patches": mmlab.flat("image", sizes=[4, 0, 3]),
            "seconds": mmlab.shared("image", batch_size=3),
            "names": mmlab.batched("image"),
            "array": mmlab.batched("image"),
        },
    )


def flat_along_dims() -> object:
    return KwargsItems.from_processor(
        {"a": ramp(torch.uint8, 2, 5), "b": ramp(torch.uint8, 5, 2, 1), "c": list("abcde")},
        {
            "a": mmlab.flat("audio", sizes=[2, 3], dim=1),
            "b": mmlab.flat("audio", sizes=[0, 5], dim=-3, keep_on_cpu=True),
            "c": mmlab.flat("audio", sizes=[4, 1]),
        },
    )


def parts() -> object:
    field = FlatField(0)
    ragged = [ramp(torch.float32, n, 3, start=n) for n in (2, 1, 4)]
    return KwargsItems(
        {
            "image": [item(x=ramp(torch.uint8, n, start=n), y=n) for n in (5, 3, 4)],
            "video": [KwargsItem({"x": FieldElem(t, field)}) for t in ragged],
        }
    )


def cached() -> object:
    a, b = item(x=ramp(torch.int8, 4)), item(y=[ramp(torch.int8, 1)])
    shared = KwargsItem({"s": FieldElem((1, "a"), SharedField(2, True))})
    return KwargsItems({"image": [None, a, None, None, b], "audio": [None] * 3, "video": [shared]})


def aliases() -> object:
    tensor, array = ramp(torch.float32, 40), np.arange(3)
    small = [ramp(torch.int32, 2, start=8 * i) for i in range(12)]
    return [tensor, {"again": tensor, "array": [array, array]}, small, torch.empty(0, 3), small[3]]


def overlapping() -> object:
    base = ramp(torch.uint8, 10_000)
    return [base[:9000], base[1000:], base[16:9016].view(torch.float32)]


def request() -> object:
    return Request(
        "Hello",
        KwargsItems({"image": [item(x=ramp(torch.bfloat16, 2, 2))]}),
        ramp(torch.float32, 2),
        (1, 2),
    )


# name -> what makes it, the encoder's threshold, kind, request id
MESSAGES: dict[str, tuple[Callable[[], object], int | None, int, int]] = {
    "text": (text, 256, 0, 0),
    "one-tensor": (one_tensor, 256, 3, 77),
    "every-dtype": (every_dtype, 0, 0, 0),
    "arrays": (arrays, 0, 0, 0),
    "values": (values, 256, 0, 0),
    "batched": (batched, 0, 255, (1 << 64) - 1),
    "batched-inline": (batched, None, 0, 0),
    "flat-along-dims": (flat_along_dims, 0, 0, 0),
    "parts": (parts, 4, 0, 0),
    "cached": (cached, 256, 0, 0),
    "aliases": (aliases, 100, 0, 0),
    "overlapping": (overlapping, 256, 0, 0),
    "request": (request, 256, 1, 5),
}


def describe(value: object) -> object:
    """A value as JSON, exact: types by name, tensors and bytes in hex."""
    if isinstance(value, torch.Tensor):
        raw = dtypes.copyable(value).contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return {"tensor": str(value.dtype), "shape": list(value.shape), "bytes": shown(raw)}
    if isinstance(value, (np.ndarray, np.generic)) and not isinstance(value, (np.str_, np.bytes_)):
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return {kind: value.dtype.str, "shape": list(value.shape), "bytes": value.tobytes().hex()}
    if isinstance(value, KwargsItems):
        return {"items": {m: [describe(e) for e in entries] for m, entries in value.items()}}
    if isinstance(value, KwargsItem):
        return {"item": {k: [str(e.field), describe(e.data)] for k, e in value.items()}}
    if isinstance(value, msgspec.Struct):
        return {
            "struct": {name: describe(getattr(value, name)) for name in value.__struct_fields__}
        }
    if isinstance(value, dict):
        return {"dict": [[describe(k), describe(v)] for k, v in value.items()]}
    if isinstance(value, slice):
        return {"slice": [describe(p) for p in (value.start, value.stop, value.step)]}
    if type(value) in (list, tuple, torch.Size):
        return {type(value).__name__: [describe(part) for part in value]}  # type: ignore[attr-defined]
    if isinstance(value, (bytes, bytearray)):
        return {type(value).__name__: value.hex()}
    if value is None or type(value) in (bool, int, str):
        return value
    return {type(value).__name__: value.hex() if isinstance(value, float) else str(value)}


def shown(raw: bytes) -> str:
    return raw.hex() if len(raw) <= 1024 else f"sha256 {hashlib.sha256(raw).hexdigest()}"


def read_frames(path: Path) -> list[bytes]:
    raw, frames, at = path.read_bytes(), [], 0
    while at < len(raw):
        (nbytes,) = struct.unpack_from("<Q", raw, at)
        frames.append(raw[at + 8 : at + 8 + nbytes])
        at += 8 + nbytes
    return frames


def main() -> None:
    index = HERE / f"v{VERSION}.json"
    known = json.loads(index.read_text()) if index.exists() else {}
    for name, (make, threshold, kind, request_id) in MESSAGES.items():
        path = HERE / f"v{VERSION}-{name}.bin"
        if path.exists():
            continue
        obj = make()
        frames = mmlab.Encoder(threshold).encode(obj, kind=kind, request_id=request_id)
        raws = [bytes(frame) for frame in frames]
        path.write_bytes(b"".join(struct.pack("<Q", len(raw)) + raw for raw in raws))
        known[name] = {"kind": kind, "request_id": request_id, "holds": describe(obj)}
        print(f"{path.name}: {path.stat().st_size} B")
    lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in known.items()]
    index.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    digests = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(HERE.glob(f"v{VERSION}-*.bin"))
    }
    (HERE / f"v{VERSION}.sha256.json").write_text(json.dumps(digests, indent=1) + "\n")


if __name__ == "__main__":
    main()
