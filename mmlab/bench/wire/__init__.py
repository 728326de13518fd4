"""`mmlab bench wire`: what one message costs to encode and decode, beside an installed vLLM."""

from mmlab.bench.wire.cases import Case, sweep_cases, table_cases
from mmlab.bench.wire.timing import measure

__all__ = ["Case", "measure", "sweep_cases", "table_cases"]
