"""Answer FETCHes and requests for heads, with limits and fair turns."""
