"""What requests carry, by seed: photographs, films over them, recordings; or files."""

from mmlab.bench.media.media import Media, Sources, load

__all__ = ["Media", "Sources", "load"]
