"""What a check found, and how a row of the table and an exit code come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from mmlab.bench.gpu.context import Context
from mmlab.measure.clocks import seconds_text


@dataclass(frozen=True)
class Finding:
    """One row. `ok`: whether it is as promised; None: shown, or skipped, and not judged."""

    name: str
    got: str
    wanted: str
    ok: bool | None
    values: Mapping[str, object] = field(default_factory=dict)  # what `got` was computed from


@dataclass(frozen=True)
class Check:
    """`run` gives its findings as it goes; `seconds` is what it may take, for the budget."""

    name: str
    run: Callable[[Context], Iterator[Finding]]
    seconds: float


def run_checks(
    checks: Iterable[Check],
    context: Context,
    *,
    budget_s: float,
    clock: Callable[[], float],
    tell: Callable[[Sequence[Finding]], object] = lambda findings: None,
    settle: Callable[[], object] = lambda: None,
) -> list[Finding]:
    """All checks, each on its own: one that raises is a failed row, and the rest goes on.

    One that does not fit into what is left of the budget is a skipped row. `tell` gets everything
    found so far after each check, `settle` cleans up between two.
    """
    begun = clock()
    found: list[Finding] = []
    for check in checks:
        left = budget_s - (clock() - begun)
        if check.seconds > left:
            got = f"skipped: may take {check.seconds:.0f} s, {max(left, 0):.0f} s of budget left"
            found.append(Finding(check.name, got, "a larger --budget-s", None))
            tell(found)
            continue
        started = clock()
        try:
            found.extend(check.run(context))  # what came before an error is kept
        except Exception as error:
            found.append(_raised(check.name, "no exception", error))
        try:
            settle()
        except Exception as error:  # an error of the device comes late: say after which check
            found.append(_raised(check.name, "no exception afterwards", error))
        context.say(f"{check.name}: {seconds_text(clock() - started)}")
        tell(found)
    return found


def failed(findings: Iterable[Finding]) -> list[str]:
    """The names of those that are not as promised."""
    return [finding.name for finding in findings if finding.ok is False]


def rows(findings: Iterable[Finding]) -> list[tuple[str, str, str, str]]:
    """(check, got, wanted, ok) as text."""
    said = {True: "ok", False: "FAILED", None: "-"}
    return [(f.name, f.got, f.wanted, said[f.ok]) for f in findings]


def records(findings: Iterable[Finding]) -> list[dict[str, object]]:
    """The findings for JSON."""
    return [asdict(finding) for finding in findings]


def _raised(name: str, wanted: str, error: Exception) -> Finding:
    line = str(error).strip().partition("\n")[0][:160]
    return Finding(name, f"{type(error).__name__}: {line}", wanted, False, {"error": str(error)})
