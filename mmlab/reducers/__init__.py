"""Reducers: elems of one key -> the batched kwarg, planned before anything is written."""

from mmlab.reducers.group import Batch, group, reduce_items
from mmlab.reducers.memory import joined_view, stacked_view
from mmlab.reducers.reduction import Plan, Reduction

__all__ = ["Batch", "Plan", "Reduction", "group", "joined_view", "reduce_items", "stacked_view"]
