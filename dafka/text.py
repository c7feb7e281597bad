"""Text that is safe to show on a terminal."""

from __future__ import annotations


def escape_unprintable(text: str) -> str:
    r"""Return a text with its line ends and control characters escaped, as in `\x1b`.

    A name that a peer chose can then neither end a line nor move the cursor of a terminal.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)
