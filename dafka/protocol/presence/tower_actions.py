"""The actions with which a beacon client uses its connections to towers. Towers are numbered as configured, from 0."""

from __future__ import annotations

from typing import TypeAlias

import attrs


@attrs.frozen
class SendToTower:
    """Send a message to one tower."""

    tower: int
    frames: list[bytes]


@attrs.frozen
class SubscribeAtTower:
    """Receive messages of one tower that begin with a prefix."""

    tower: int
    prefix: bytes


@attrs.frozen
class UnsubscribeAtTower:
    """Undo one `SubscribeAtTower`."""

    tower: int
    prefix: bytes


TowerAction: TypeAlias = SendToTower | SubscribeAtTower | UnsubscribeAtTower
