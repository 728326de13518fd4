"""All trials of a matrix, one after another, and what a cell comes to."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

import msgspec

from mmlab.bench.kills import trial
from mmlab.bench.kills.plan import STAGES, VICTIMS, Trial
from mmlab.bench.kills.processes import adopting_orphans
from mmlab.bench.kills.trial import Row
from mmlab.bench.progress import ProgressLog
from mmlab.measure import environment


def record() -> dict[str, object]:
    """The machine and the versions, for the rows."""
    found: dict[str, object] = msgspec.to_builtins(environment.collect())
    return found | {"torch_threads": 1}  # of every process of a trial


def run(plan: Sequence[Trial], log: Callable[[str], None]) -> Iterator[Row]:
    """The row of each trial when it is over; a line of progress before and after it."""
    progress = ProgressLog([f"{t.stage} {t.model}" for t in plan], log)
    with adopting_orphans():
        for order, one in enumerate(plan):
            progress.start(order, one.name)
            row = trial.run(one)
            wrong = [*_texts(row["problems"]), *_texts(row["leaks"])]
            why = f"{'; '.join(wrong)}. Again: {one.again}"
            progress.end("ok" if row["ok"] else "FAILED", why)
            yield row


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """(head, lines): a line for each cell that was tried."""
    head = ["stage", "victim", "trials", "failed", "detected: median", "worst", "limit"]
    head += ["survivor's exit", "leaks", "new pipeline: median", "worst"]
    lines = []
    for stage in STAGES:
        for victim in VICTIMS:
            mine = [row for row in rows if (row["stage"], row["victim"]) == (stage, victim)]
            if mine:
                lines.append(_line(stage, victim, mine))
    return head, lines


def failures(rows: Sequence[Row]) -> list[str]:
    """A line for each trial that broke a limit or left something, with how to run it alone."""
    return [
        f"FAILED {row['stage']}, {row['victim']}, {row['strategy']}: "
        f"{'; '.join([*_texts(row['problems']), *_texts(row['leaks'])])}\n"
        f"  again: mmlab bench kills {row['again']}"
        for row in rows
        if not row["ok"]
    ]


def notes(rows: Sequence[Row]) -> str:
    """What the columns are, and what is counted as in order."""
    left = sum(bool(row["directory_left_to_next_start"]) for row in rows)
    ways = ", ".join(dict.fromkeys(str(row["strategy"]) for row in rows))
    models = ", ".join(dict.fromkeys(str(row["model"]) for row in rows))
    stages = [f"{name}: {stage.says}" for name, stage in STAGES.items()]
    return "\n".join(
        [
            *stages,
            "detected: from SIGKILL until every future and every blocked submitter of the frontend",
            "has its EngineError, or until the engine has exited. leaks: processes, /dev/shm,",
            "arenas, threads, descriptors of the survivor, socket directories. new pipeline: from",
            "its start to its first answer, in the survivor or in a frontend that stood by.",
            f"Where both were killed nobody is left to remove the socket directory: {left} of",
            f"{len(rows)} trials left one, and the next start removed it; that is no leak.",
            f"models: {models}; strategies, drawn by seed: {ways}",
        ]
    )


def _line(stage: str, victim: str, rows: Sequence[Row]) -> list[str]:
    limit = rows[0]["detect_limit_s"]
    codes = sorted(
        {
            f"{role} {code}"
            for row in rows
            if isinstance(found := row["exit_codes"], dict)
            for role, code in found.items()
        }
    )
    detected, restarted = _numbers(rows, "detect_s"), _numbers(rows, "restart_s")
    return [
        stage,
        victim,
        str(len(rows)),
        str(sum(not row["ok"] for row in rows)),
        *_median_and_worst(detected, 3),
        f"{limit:g} s" if isinstance(limit, float) else "-",
        ", ".join(codes) or "-",
        str(sum(len(_texts(row["leaks"])) for row in rows)),
        *_median_and_worst(restarted, 1),
    ]


def _median_and_worst(values: Sequence[float], digits: int) -> list[str]:
    if not values:
        return ["-", "-"]
    return [f"{statistics.median(values):.{digits}f} s", f"{max(values):.{digits}f} s"]


def _numbers(rows: Sequence[Row], key: str) -> list[float]:
    return [value for row in rows if isinstance(value := row[key], float)]


def _texts(value: object) -> list[str]:
    assert isinstance(value, list)
    return [str(text) for text in value]
