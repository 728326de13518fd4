"""Copies that go past the processor's caches: large payload is written once and read elsewhere.

An ordinary store first fetches the line that it is about to overwrite, so a large copy moves every
byte three times over the memory bus. Non-temporal stores leave the fetch out: measured into warm
shared memory, 1.5 times as fast from some MiB on, and slower for less, which the reader would still
have found in a cache. Neither NumPy nor torch has such a copy; llvmlite, where it is installed,
compiles this one. Without it, and for small payload, NumPy copies.
"""

from __future__ import annotations

import ctypes
import functools
import platform
from collections.abc import Callable
from types import ModuleType
from typing import Final

import numpy as np

LARGE: Final = 4 << 20  # bytes; from here on copy and first reading together are faster, measured
_BLOCK: Final = 128  # bytes a turn of the loop: two lines
_PART: Final = _BLOCK // 4
_FENCE: Final = {"x86_64": "call void @llvm.x86.sse.sfence()"}  # orders these stores before others

Loop = Callable[[int, int, int], None]


def copy(out: np.ndarray, source: np.ndarray, *, large: int = LARGE) -> None:
    """Copy `source` to `out`, both dense uint8 of one length, without the interpreter's lock.

    `large`: from how many bytes on past the caches; less (256 at least) for parts of a large whole.
    """
    nbytes = out.nbytes
    loop = None if nbytes < large else compiled()
    if loop is None:
        np.copyto(out, source)
        return
    head = -out.ctypes.data % _BLOCK  # the loop's stores are aligned
    blocks, rest = divmod(nbytes - head, _BLOCK)
    loop(out.ctypes.data + head, source.ctypes.data + head, blocks)
    np.copyto(out[:head], source[:head])
    np.copyto(out[nbytes - rest :], source[nbytes - rest :])


@functools.cache
def compiled() -> Loop | None:
    """The loop as machine code of this processor; None where llvmlite is missing or cannot do it.

    (address to write to, a multiple of 128; address to read from; number of blocks of 128 B, at
    least one) -> None. It releases the interpreter's lock.
    """
    try:
        import llvmlite.binding as llvm
    except (ImportError, OSError):
        return None
    try:
        return _compile(llvm)
    except RuntimeError:  # LLVM's own errors
        return None


def _compile(llvm: ModuleType) -> Loop:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=2
    )
    module = llvm.parse_assembly(_source(platform.machine()))
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    words = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
    loop = ctypes.CFUNCTYPE(None, *words)(engine.get_function_address("stream"))
    loop.owner = engine  # type: ignore[attr-defined]  # the machine code is the engine's
    return loop


def _source(processor: str) -> str:
    """LLVM's intermediate language: all of a block is loaded before any of it is stored."""
    places = range(0, _BLOCK, _PART)
    loads = [
        f"%in{at} = getelementptr i8, ptr %from, i64 {at}\n"
        f"%v{at} = load <{_PART} x i8>, ptr %in{at}, align 1"
        for at in places
    ]
    stores = [
        f"%out{at} = getelementptr i8, ptr %to, i64 {at}\n"
        f"store <{_PART} x i8> %v{at}, ptr %out{at}, align {_PART}, !nontemporal !0"
        for at in places
    ]
    return "\n".join(
        [
            "declare void @llvm.x86.sse.sfence()" if processor == "x86_64" else "",
            "define void @stream(ptr %out, ptr %in, i64 %blocks) {",
            "begin:",
            "br label %loop",
            "loop:",
            "%n = phi i64 [0, %begin], [%next, %loop]",
            f"%at = mul i64 %n, {_BLOCK}",
            "%from = getelementptr i8, ptr %in, i64 %at",
            "%to = getelementptr i8, ptr %out, i64 %at",
            *loads,
            *stores,
            "%next = add i64 %n, 1",
            "%more = icmp ult i64 %next, %blocks",
            "br i1 %more, label %loop, label %done",
            "done:",
            _FENCE.get(processor, "fence seq_cst"),
            "ret void",
            "}",
            "!0 = !{i32 1}",
        ]
    )
