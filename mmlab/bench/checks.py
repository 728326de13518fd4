"""Whether what was measured was right: the same bytes and answer, whichever way they went.

Another payload dtype is other bytes by its nature, and may round an answer to another token. That
is no failure of delivery, and nothing to be silent about: it is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mmlab.errors import MMLabError


class DeliveryError(MMLabError):
    """What arrived is not what was sent: a fast wrong answer is a failed trial."""


_BASE = "float32"
_SAME_REQUEST = ("workload", "model", "scale", "seed", "repeat", "request")


def verify(rows: Iterable[Mapping[str, object]]) -> int:
    """Compares every request over strategies, blocks and phases; returns how many it compared.

    A request has the same images in both phases and for all strategies, so that its checksum and
    its greedy tokens must be one wherever it went as the same payload. DeliveryError names the
    first request where they are not.
    """
    groups = _by_request(rows)
    for payloads in groups.values():
        for group in payloads.values():
            for column, what in (("checksum", "bytes"), ("token_ids", "greedy tokens")):
                _agree(group, column, what)
    return len(groups)


def other_tokens(rows: Iterable[Mapping[str, object]]) -> dict[str, tuple[int, int]]:
    """By payload but float32: (requests with other greedy tokens than as float32, requests that
    went as both)."""
    found: dict[str, tuple[int, int]] = {}
    for payloads in _by_request(rows).values():
        base = payloads.get(_BASE)
        for payload, group in payloads.items():
            if base is not None and payload != _BASE:
                differ, compared = found.get(payload, (0, 0))
                differ += group[0]["token_ids"] != base[0]["token_ids"]
                found[payload] = (differ, compared + 1)
    return found


def _by_request(
    rows: Iterable[Mapping[str, object]],
) -> dict[tuple[object, ...], dict[str, list[Mapping[str, object]]]]:
    """Request -> payload -> its rows. Rows from before there was a choice were float32."""
    groups: dict[tuple[object, ...], dict[str, list[Mapping[str, object]]]] = {}
    for row in rows:
        payloads = groups.setdefault(tuple(row.get(name) for name in _SAME_REQUEST), {})
        payloads.setdefault(str(row.get("payload") or _BASE), []).append(row)
    return groups


def _agree(group: list[Mapping[str, object]], column: str, what: str) -> None:
    first = group[0]
    for row in group:
        if row[column] != first[column]:
            raise DeliveryError(
                f"repeat {row['repeat']}, request {row['request']} ({row['case']}): different "
                f"{what} for {_name(first)} ({column} {first[column]}) and {_name(row)} "
                f"({row[column]})"
            )


def _name(row: Mapping[str, object]) -> str:
    return f"{row['strategy']}/{row['phase']}"
