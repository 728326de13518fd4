"""Instruments: clocks, memory readings and the record of the machine."""

from mmlab.measure.capacity import available_nbytes, gib_text
from mmlab.measure.clocks import Stopwatch, now, seconds_text, utc_stamp
from mmlab.measure.environment import Environment, collect
from mmlab.measure.memory import PssSample, PssSampler, read_pss

__all__ = [
    "Environment",
    "PssSample",
    "PssSampler",
    "Stopwatch",
    "available_nbytes",
    "collect",
    "gib_text",
    "now",
    "read_pss",
    "seconds_text",
    "utc_stamp",
]
