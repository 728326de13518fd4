"""Defaults of the main job, chosen so that it ends within three minutes on two cores."""

from __future__ import annotations

from typing import Final

WORKLOAD: Final = "doc-mix"
MODEL: Final = "gemma3-tiny"
SCALE: Final = 0.125
REPEATS: Final = 2
NOTEBOOK: Final = "quickstart"
RUNS: Final = "runs"
MAX_NEW_TOKENS: Final = 4
