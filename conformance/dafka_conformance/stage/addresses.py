"""The addresses of the nodes that the suite plays.

All begin alike, so that in a cluster that several scenarios share, each takes the others' nodes for what they are.
"""

from __future__ import annotations

import uuid

_BEGIN = "DAFCA0"


def new_address() -> bytes:
    """An address that no other node has: 32 upper-case hexadecimal digits."""
    return (_BEGIN + uuid.uuid4().hex[len(_BEGIN) :]).upper().encode("ascii")


def is_played(address: bytes) -> bool:
    """Is this the address of a node that the suite plays, in whatever scenario?"""
    return address.startswith(_BEGIN.encode("ascii"))
