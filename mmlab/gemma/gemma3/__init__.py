"""Gemma 3: images of one size, 256 tokens each, in the text where they stand."""

from mmlab.gemma.gemma3.making import engine, frontend

__all__ = ["engine", "frontend"]
