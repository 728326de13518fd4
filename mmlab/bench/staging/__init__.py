"""What `PinnedBatcher.stage` costs in each mode, beside a memcpy and a plain pinned copy."""
