"""Where a hot storage keeps what it knows of its cold tier, so that it is never opened without it."""

from __future__ import annotations

import os

TIER_FILE = "tier.json"
"""The file that says where the cold tier is."""


TIER_FOLDER = "cold"
"""The folder of that file in a file log."""


def tier_folder(url: str) -> str | None:
    """Return the folder in which a hot storage keeps what it knows of its cold tier.

    Args:
        url: The URL of the hot storage.

    Returns:
        The folder, which may not be there; None if the storage is not a file or folder of a known kind.
    """
    scheme, _, location = url.partition(":")
    path = location.partition("?")[0].rstrip("/")
    if not path or "\0" in path:
        return None
    if scheme == "filelog":
        return f"{path}/{TIER_FOLDER}"
    return f"{path}-{TIER_FOLDER}" if scheme == "sqlite" else None


def has_tier(url: str) -> bool:
    """Return whether a storage has a cold tier."""
    folder = tier_folder(url)
    return folder is not None and os.path.isfile(f"{folder}/{TIER_FILE}")
