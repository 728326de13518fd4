"""Whether what was measured was right: the same bytes and answer, whichever way they went."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from mmlab.bench.events import Value
from mmlab.errors import MMLabError


class DeliveryError(MMLabError):
    """What arrived is not what was sent: a fast wrong answer is a failed trial."""


_SAME_REQUEST = ("workload", "model", "scale", "seed", "repeat", "request")


def verify(rows: Iterable[Mapping[str, Value]]) -> int:
    """Compares every request over strategies, blocks and phases; returns how many it compared.

    A request has the same images in both phases and for all strategies, so that its checksum and
    its greedy tokens must be one. DeliveryError names the first request where they are not.
    """
    groups: dict[tuple[Value, ...], list[Mapping[str, Value]]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in _SAME_REQUEST)].append(row)
    for group in groups.values():
        for column, what in (("checksum", "bytes"), ("token_ids", "greedy tokens")):
            _agree(group, column, what)
    return len(groups)


def _agree(group: list[Mapping[str, Value]], column: str, what: str) -> None:
    first = group[0]
    for row in group:
        if row[column] != first[column]:
            raise DeliveryError(
                f"repeat {row['repeat']}, request {row['request']} ({row['case']}): different "
                f"{what} for {_name(first)} ({column} {first[column]}) and {_name(row)} "
                f"({row[column]})"
            )


def _name(row: Mapping[str, Value]) -> str:
    return f"{row['strategy']}/{row['phase']}"
