"""How a role does, as a supervisor asks."""

from __future__ import annotations

import attrs


@attrs.frozen
class Health:
    """Each text is empty where all is well.

    Attributes:
        trouble: why it should be started anew: it does not go on by itself.
        unready: why it cannot do its work now; it tries on, and a new start would help nothing.
    """

    trouble: str = ""
    unready: str = ""
