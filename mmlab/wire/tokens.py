"""msgpack's tokens by their first byte, for those who walk a body without reading it."""

from __future__ import annotations

from typing import Final

NUMBER: Final = {  # first byte -> bytes of the number behind it
    **{0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
}
FIXED_EXT: Final = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}  # -> bytes behind its type
ARRAYS: Final = bytes((*range(0x90, 0xA0), 0xDC, 0xDD))
MAPS: Final = bytes((*range(0x80, 0x90), 0xDE, 0xDF))
