"""What was measured on what, in a line, for the foot of a table or a figure."""

from __future__ import annotations

from collections.abc import Mapping

ROUNDS = "medians of interleaved rounds, 95 % intervals"


def footing(head: Mapping[str, object], library: str, how: str = ROUNDS) -> str:
    """From {"peer": ..., "environment": ...}; `library`: the one that matters besides torch."""
    found = head.get("environment")
    if not isinstance(found, dict):
        return "nothing was measured"
    parts = [
        f"{found['cpu']}, {found['cores']} cores, torch threads: {found['torch_threads']}",
        *(f"{name} {found[name]}" for name in ("torch", library, "mmlab")),
        *([str(head["peer"])] if head.get("peer") else []),
        f"{found['time'][:10]}",
        how,
    ]
    return " · ".join(parts)
