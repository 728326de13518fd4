"""What one trial is told to do, and what a whole run is: plain data that crosses processes as JSON.

A trial is one strategy on one workload with one seed, in processes of its own. Unknown settings are
refused when a spec is read, so that a misspelt one can never run with a default in its place.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from mmlab.errors import UsageError

Kind = Literal["time", "memory", "both"]  # both: memory first, then time, never at once
ECHO = "echo"  # the model that is none: the engine answers with a checksum


class TrialSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One trial. `first_repeat` numbers its repeats on, so that blocks use images of their own."""

    strategy: str
    workload: str = "doc-mix"
    model: str = "gemma3-tiny"
    kind: Kind = "time"
    scale: float = 1.0
    seed: int = 0
    block: int = 0
    first_repeat: int = 0
    rounds: int = 1  # of the whole workload, within this trial's processes; each is a repeat
    min_samples: int = 1  # requests of each case in the sequential phase, at least
    without: tuple[str, ...] = ()  # cases of the workload that are left out
    images: str | None = None
    strict: bool = False
    device: str = "auto"
    max_new_tokens: int = 4
    max_inflight_nbytes: int = 1 << 30
    engine_threads: int | None = None
    frontend_threads: int | None = None
    start_timeout_s: float = 120.0
    reply_timeout_s: float = 600.0
    image_size: int = 896  # side of the square that `echo` sends; models choose their own
    sample_interval_s: float = 0.002  # of a memory trial


class RunSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A run: every strategy in every block, in random order."""

    strategies: tuple[str, ...]
    workload: str = "doc-mix"
    model: str = "gemma3-tiny"
    scale: float = 1.0
    seed: int = 0
    repeats: int = 2  # timed trials of each strategy, each in fresh processes
    rounds: int = 1  # of the whole workload within a trial
    min_samples: int = 3
    memory_trials: int = 1  # trials of each strategy that measure memory, ahead of their timing
    images: str | None = None
    strict: bool = False
    device: str = "auto"
    max_new_tokens: int = 4
    max_inflight_nbytes: int = 1 << 30
    engine_threads: int | None = None
    frontend_threads: int | None = None
    trial_timeout_s: float = 1800.0
    image_size: int = 896
    keep_going: bool = False  # a failed trial is recorded and the rest still runs
    leave_out: bool = False  # of a trial that would not fit into memory only the largest cases

    def trial(
        self, strategy: str, kind: Kind, block: int, without: tuple[str, ...] = ()
    ) -> TrialSpec:
        """The spec of one trial of this run."""
        return TrialSpec(
            strategy=strategy,
            workload=self.workload,
            model=self.model,
            kind=kind,
            scale=self.scale,
            seed=self.seed,
            block=block,
            first_repeat=block * self.rounds,
            rounds=self.rounds,
            min_samples=self.min_samples,
            without=without,
            images=self.images,
            strict=self.strict,
            device=self.device,
            max_new_tokens=self.max_new_tokens,
            max_inflight_nbytes=self.max_inflight_nbytes,
            engine_threads=self.engine_threads,
            frontend_threads=self.frontend_threads,
            image_size=self.image_size,
        )


def decode_spec(text: str | bytes) -> TrialSpec:
    """A TrialSpec from JSON; UsageError names the setting that is unknown or of a wrong type."""
    try:
        return msgspec.json.decode(text, type=TrialSpec)
    except msgspec.MsgspecError as error:
        known = ", ".join(TrialSpec.__struct_fields__)
        raise UsageError(f"trial spec: {error}; known settings: {known}") from error
