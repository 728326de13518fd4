"""A run: the trials of all strategies in random blocks, one after another, each in fresh processes.

Every block holds each strategy once, in an order drawn by seed, so that a machine that gets slower
or warmer in the meantime does so to all of them. Tables are written after every trial: whatever
interrupts a run, the trials that were finished are on disk.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from mmlab.bench import checks, headroom, results, workloads
from mmlab.bench.columns import SCHEMA_VERSION
from mmlab.bench.events import Row, TrialError
from mmlab.bench.families import family_of
from mmlab.bench.launch import Outcome, launch, trial_variables
from mmlab.bench.progress import Log, ProgressLog, to_stderr
from mmlab.bench.results import Tables
from mmlab.bench.spec import Kind, RunSettings
from mmlab.bench.validate import validate
from mmlab.measure import environment
from mmlab.measure.capacity import available_nbytes, gib_text
from mmlab.measure.clocks import now, utc_stamp
from mmlab.strategies import resolve

_SAID: dict[Kind, str] = {"time": "time", "memory": "memory", "both": "memory and time"}


@dataclass(frozen=True)
class Plan:
    """One trial of a run, in its place."""

    order: int
    kind: Kind
    block: int
    strategy: str


def plan(settings: RunSettings) -> list[Plan]:
    """All trials in the order they will run, block by block.

    The first `memory_trials` blocks measure memory before they time; blocks beyond `repeats` do
    nothing else.
    """
    shuffle = random.Random(settings.seed)
    places: list[tuple[Kind, int, str]] = []
    for block in range(max(settings.repeats, settings.memory_trials)):
        kind: Kind = "both" if block < settings.memory_trials else "time"
        if block >= settings.repeats:
            kind = "memory"
        names = list(settings.strategies)
        shuffle.shuffle(names)
        places += [(kind, block, name) for name in names]
    return [Plan(order, *place) for order, place in enumerate(places)]


def run_trials(
    settings: RunSettings,
    out: Path | str | None = None,
    *,
    run_id: str | None = None,
    log: Log = to_stderr,
) -> Tables:
    """Runs every trial of `settings` and returns the rows; with `out` they are on disk as well.

    A trial that would not fit into memory is skipped and recorded. One that fails is recorded and
    raised as the error it was (after all others, with `keep_going`). DeliveryError where strategies
    disagree on what they delivered. On Ctrl-C the finished trials stay in `out`.
    """
    skipped = validate(settings)
    tables = Tables(environment=environment.collect(trial_variables()))
    run = _Run(settings, tables, run_id or utc_stamp(), Path(out) if out is not None else None)
    places = plan(settings)
    told = ProgressLog([place.kind for place in places], log)
    for path, reason in skipped:
        told.say(f"image {path} skipped: {reason}")
    first_error: Exception | None = None
    for place in places:
        error = run.trial(place, told)
        run.save()
        first_error = first_error or error
        if error is not None and not settings.keep_going:
            raise error
    compared = checks.verify(tables.results)
    if first_error is not None:
        raise first_error
    if not tables.results and not tables.memory:
        raise TrialError(f"no trial could run: {tables.trials[0]['reason']}")
    told.say(f"{compared} requests compared: all strategies delivered the same bytes and tokens")
    for payload, (differ, both) in sorted(checks.other_tokens(tables.results).items()):
        told.say(f"{payload} against float32: other greedy tokens in {differ} of {both} requests")
    return tables


class _Run:
    """The state of a run: its tables, and how the rows of a trial become rows of the run."""

    def __init__(
        self, settings: RunSettings, tables: Tables, run_id: str, out: Path | None
    ) -> None:
        assert tables.environment is not None
        self._settings = settings
        self._tables = tables
        self._out = out
        self._which: Row = {"schema": SCHEMA_VERSION, "run_id": run_id}
        self._environment = results.environment_columns(tables.environment)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)

    def trial(self, place: Plan, told: ProgressLog) -> Exception | None:
        """Runs one trial unless memory forbids it; returns what made it fail."""
        estimate, without = self._fitting(place)
        named = f"{place.strategy}, {_SAID[place.kind]}, block {place.block + 1}"
        start, status, reason = now(), "ok", ""
        told.start(place.order, named)
        outcome = Outcome()
        if not estimate.fits:
            status, reason = (
                "skipped",
                (
                    f"may need {gib_text(estimate.needed_nbytes)}, "
                    f"{gib_text(estimate.available_nbytes)} are available: lower --scale"
                ),
            )
        else:
            spec = self._settings.trial(place.strategy, place.kind, place.block, without)
            outcome = launch(spec, on_progress=told.step, timeout_s=self._settings.trial_timeout_s)
            if outcome.error is not None:
                status, reason = "failed", str(outcome.error)
            elif without:
                reason = f"left out, would not fit into memory: {', '.join(without)}"
        told.end(status, reason)
        self._keep(outcome)
        self._tables.trials.append(
            {
                **self._which,
                "strategy": place.strategy,
                "kind": place.kind,
                "block": place.block,
                "order": place.order,
                "status": status,
                "reason": reason,
                "wall_s": now() - start,
                "needed_nbytes": estimate.needed_nbytes,
                "available_nbytes": estimate.available_nbytes,
            }
        )
        return outcome.error

    def _fitting(self, place: Plan) -> tuple[headroom.Estimate, tuple[str, ...]]:
        """What the trial may need, and the cases that it must do without to fit, if it may."""
        workload = workloads.get(self._settings.workload)
        requests, without = workload.requests(self._settings.scale), list[str]()
        estimate = self._estimate(place, requests, mix=workload.mix)
        while self._settings.leave_out and not estimate.fits:
            largest = max(requests, key=lambda request: request.num_images).case
            fewer = [request for request in requests if request.case != largest]
            if not fewer:
                break
            requests = fewer
            without.append(largest)
            estimate = self._estimate(place, requests, mix=workload.mix)
        return estimate, tuple(without)

    def _estimate(
        self, place: Plan, requests: list[workloads.Request], *, mix: bool
    ) -> headroom.Estimate:
        needed = headroom.needed_nbytes(
            resolve(place.strategy),
            requests,
            max_inflight_nbytes=self._settings.max_inflight_nbytes,
            image_size=self._settings.image_size,
            mix=mix and place.kind != "memory",
            family=family_of(self._settings.model),
        )
        return headroom.Estimate(needed, available_nbytes())

    def _keep(self, outcome: Outcome) -> None:
        for table, rows in outcome.rows.items():
            more = self._environment if table in ("results", "memory") else {}
            kept: list[Row] = getattr(self._tables, table)
            kept += [{**self._which, **row, **more} for row in rows]

    def save(self) -> None:
        """Everything so far, as files."""
        if self._out is not None:
            results.write(self._out, self._tables)
