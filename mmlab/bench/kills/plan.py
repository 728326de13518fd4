"""What is killed, when, and over which way: the cells of the kill matrix and the draws of a trial.

All that a trial leaves to chance is drawn from its seed and its cell, so that one that failed can
be run again alone: its seed as `--seed`, its stage, its victim, and `--repeats 1`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from mmlab.errors import unknown
from mmlab.strategies import Strategy, resolve

FRONTEND, ENGINE = "frontend", "engine"  # roles; who is killed, and who may survive
DETECT_S: Final = {FRONTEND: 2.0, ENGINE: 5.0}  # from the kill: errors on all futures; its exit
RESTART_S: Final = 60.0  # one that has not answered by then counts as hanging
MODELS: Final = ("echo", "gemma3-tiny")
PREFILL_TOKENS: Final = 12_000  # of gemma3-tiny: 10 s on one core
PREFILL_S: Final = 10.0  # that the stand-in of a prefill computes, for echo
PENDING: Final = 4  # requests of a trial that are sent and not answered


@dataclass(frozen=True)
class Stage:
    """Where a request is at the kill. `held_by`: the process that stops there and says so."""

    held_by: str
    says: str


STAGES: Final = {
    "before-send": Stage(FRONTEND, "encoded, and not one frame sent"),
    "mid-send": Stage(FRONTEND, "in the transport or the arena's copy, a part is out"),
    "queued": Stage(ENGINE, "received, and waiting behind another"),
    "in-reduce": Stage(ENGINE, "the batch is being built"),
    "in-model": Stage(ENGINE, "in a prefill of 10 s"),
}


@dataclass(frozen=True)
class Victim:
    """Which roles are killed; all others have to survive, and to say so or to leave in order.

    A further role, such as another frontend of the same engine, is one more process in the trial's
    `play`, with its reaction and its limit; the rest goes by these names.
    """

    roles: tuple[str, ...]
    watched: tuple[str, ...]  # whose reaction is measured against `DETECT_S`
    leaves_directory: bool = False  # to the next start: nobody is left who could remove it


VICTIMS: Final = {
    "frontend": Victim((FRONTEND,), (ENGINE,)),
    "engine": Victim((ENGINE,), (FRONTEND,)),
    "both": Victim((FRONTEND, ENGINE), (), leaves_directory=True),
}
WAYS: Final = {
    "arena": resolve("arena"),
    "msgpack": resolve("msgpack"),
    "msgpack-tcp": replace(resolve("msgpack"), name="msgpack-tcp", transport="tcp"),
}


class Trial(msgspec.Struct, frozen=True):
    """One pipeline and its end. `call`: at which of several like moments; `moment_s`: after it."""

    stage: str
    victim: str
    strategy: str
    model: str
    seed: int
    call: int
    moment_s: float
    engine_first: bool  # where both are killed

    @property
    def name(self) -> str:
        return f"{self.stage}, {self.victim} killed ({self.model}, {self.strategy})"

    @property
    def again(self) -> str:
        """The options that run this trial alone."""
        return (
            f"--stages {self.stage} --victims {self.victim} --model {self.model} "
            f"--strategy {self.strategy} --seed {self.seed} --repeats 1"
        )


def way(name: str) -> Strategy:
    """UsageError for one that the matrix does not have."""
    if name not in WAYS:
        raise unknown("strategy", name, WAYS)
    return WAYS[name]


def draw(stage: str, victim: str, seed: int, model: str, strategy: str | None) -> Trial:
    """The trial of that seed in that cell. The strategy is drawn too, unless it is given."""
    dice = random.Random(f"{stage} {victim} {seed}")
    drawn = dice.choice(list(WAYS))
    # A request of echo has nine frames and two keys, one image of Gemma two frames and one key.
    call = dice.randint(1, {"mid-send": 8, "in-reduce": 2}.get(stage, 1))
    moment_s = dice.uniform(0.0, 3.0 if stage == "in-model" and model != "echo" else 0.2)
    return Trial(
        stage,
        victim,
        drawn if strategy is None else strategy,
        model,
        seed,
        call if model == "echo" else 1,
        moment_s,
        dice.random() < 0.5,
    )


def trials(
    stages: Sequence[str],
    victims: Sequence[str],
    *,
    repeats: int,
    seed: int,
    model: str,
    strategy: str | None,
) -> list[Trial]:
    """Every cell once, then every cell again: what is broken off has seen each equally often."""
    return [
        draw(stage, victim, seed + n, model, strategy)
        for n in range(repeats)
        for stage in stages
        for victim in victims
    ]
