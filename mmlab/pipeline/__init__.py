"""The pipeline: a frontend, an engine in a process of its own, and all that keeps them honest."""

from mmlab.pipeline.client import Pipeline
from mmlab.pipeline.messages import Reply

__all__ = ["Pipeline", "Reply"]
