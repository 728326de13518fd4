"""The columns of every result table, in one place: name, type, unit and meaning.

Writers check their rows against it and readers document their figures from it, so that a column
never means one thing to the one and another to the other. The version goes up whenever a column
changes its meaning or goes away; adding one does not need it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mmlab.measure.environment import ENVIRONMENT_DOCS

SCHEMA_VERSION = 1

Kind = Literal["str", "int", "uint64", "float", "bool"]


@dataclass(frozen=True)
class Column:
    """One column. `optional`: a value may be missing (None), which never means 0."""

    name: str
    kind: Kind
    doc: str
    optional: bool = False


def _stage(name: str, doc: str) -> Column:
    return Column(f"{name}_s", "float", f"seconds: {doc}", optional=True)


_WHICH = (
    Column("schema", "int", "version of these columns"),
    Column("run_id", "str", "the run that a row belongs to"),
    Column("strategy", "str", "name of the strategy"),
)

RESULTS: tuple[Column, ...] = (
    *_WHICH,
    Column("workload", "str", "name of the workload"),
    Column("case", "str", "images a prompt, as a label: '4 images'"),
    Column("phase", "str", "'sequential': one request at a time; 'mix': all prompts at once"),
    Column("model", "str", "preset, path or hub id; 'echo' has no model"),
    Column("scale", "float", "factor on the workload's images a prompt"),
    Column("seed", "int", "seed of images, order and weights"),
    Column("repeat", "int", "which repeat; its images are its own, the same for all strategies"),
    Column("block", "int", "which random block of trials; every trial has fresh processes"),
    Column("request", "int", "number of the request within its repeat and phase"),
    Column("num_images", "int", "images in the request"),
    Column("payload", "str", "what pixel values were sent as: float32, bfloat16 or uint8"),
    Column("payload_nbytes", "int", "bytes of what was sent so, aliases counted once"),
    Column("wire_nbytes", "int", "bytes of all frames sent", optional=True),
    Column("num_frames", "int", "frames of the message", optional=True),
    Column(
        "latency_s",
        "float",
        "seconds from submit to reply; in the mix: from the moment all prompts arrive",
    ),
    _stage("processor", "images -> processed items, in the frontend"),
    _stage("encode", "items -> frames"),
    _stage("transport", "end of encode -> received by the engine, waiting included"),
    _stage("decode", "frames -> items"),
    _stage("reduce", "items -> batch"),
    _stage("h2d", "batch -> device"),
    _stage("encoder", "vision encoder and projector"),
    _stage("prefill", "text model over the whole prompt"),
    _stage("decode_tokens", "greedy decoding of the answer"),
    Column("checksum", "uint64", "xxh3_64 over the bytes of the batch at the device, key by key"),
    Column("token_ids", "str", "the greedy answer, a JSON list"),
    Column("images_skipped", "int", "files of the image folder that could not be decoded"),
    Column("device", "str", "where the model ran"),
    Column("pinned", "bool", "whether the copy to the device started from page-locked memory"),
    Column("copies", "str", "how often the strategy's CPUs move each payload byte, as declared"),
    Column("frontend_threads", "int", "torch threads in the frontend process"),
    Column("engine_threads", "int", "torch threads in the engine process", optional=True),
)

MEMORY: tuple[Column, ...] = (
    *_WHICH,
    Column("workload", "str", "name of the workload"),
    Column("model", "str", "preset, path or hub id"),
    Column("scale", "float", "factor on the workload's images a prompt"),
    Column("seed", "int", "seed of images and weights"),
    Column("repeat", "int", "which memory trial of this strategy; one row a process and trial"),
    Column("process", "str", "'frontend', 'engine', or 'both': the highest sum at one moment"),
    Column("base_pss", "int", "PSS in bytes when idle, after a text-only request", optional=True),
    Column("peak_pss", "int", "highest PSS in bytes; both without pages of files", optional=True),
    Column("base_rss", "int", "RSS in bytes when idle, after a text-only request", optional=True),
    Column("peak_rss", "int", "the kernel's high-water mark of RSS, in bytes", optional=True),
    Column("payload_nbytes", "int", "bytes of the workload's largest request"),
    Column("multiple", "float", "(peak_pss - base_pss) / payload_nbytes", optional=True),
)

SAMPLES: tuple[Column, ...] = (
    *_WHICH,
    Column("repeat", "int", "which memory trial of this strategy"),
    Column("time_s", "float", "seconds since the first sample of the trial"),
    Column("process", "str", "'frontend' or 'engine'"),
    Column("case", "str", "case whose requests were under way; '' before the first"),
    Column("payload_nbytes", "int", "bytes of that case's request; 0 before the first"),
    Column("mark", "str", "name of the moment; '' for a periodic sample"),
    Column("pss", "int", "PSS in bytes; missing where the process was gone", optional=True),
)

TRIALS: tuple[Column, ...] = (
    *_WHICH,
    Column("kind", "str", "'time', 'memory', or 'both': memory first, then time"),
    Column("block", "int", "which random block"),
    Column("order", "int", "position in the whole run"),
    Column("status", "str", "'ok', 'skipped' (would not fit in memory) or 'failed'"),
    Column("reason", "str", "one line; '' where it went well"),
    Column("wall_s", "float", "seconds from start to end, with start-up of both processes"),
    Column("needed_nbytes", "int", "memory the trial was expected to take"),
    Column("available_nbytes", "int", "memory that was there before it"),
)

_ENVIRONMENT_KINDS: dict[str, Kind] = {
    "cores": "int",
    "cores_physical": "int",
    "memory_nbytes": "int",
    "gpu_count": "int",
    "memlock_nbytes": "int",
    "shm_nbytes": "int",
    "torch_threads": "int",
}
ENVIRONMENT: tuple[Column, ...] = tuple(
    Column(f"env_{name}", _ENVIRONMENT_KINDS.get(name, "str"), doc, optional=True)
    for name, doc in ENVIRONMENT_DOCS.items()
)

TABLES: dict[str, tuple[Column, ...]] = {
    "results": RESULTS + ENVIRONMENT,
    "memory": MEMORY + ENVIRONMENT,
    "samples": SAMPLES,
    "trials": TRIALS,
}
