"""What was measured is shown whatever becomes of its file; a file is there whole or not at all."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from mmlab.errors import MMLabError


def keep(path: Path, everything: object) -> None:
    """Write it as JSON. MMLabError, with the path and the reason, where that is not possible."""
    draft = path.with_name(f".{path.name}")
    try:
        draft.write_text(json.dumps(everything, indent=1))
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise MMLabError(
            f"{path}: not written ({error.strerror}); what was measured is above: free space or "
            "choose another --out"
        ) from error
