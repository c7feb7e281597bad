"""A scenario's cluster: the target, the suite's own nodes and tower, and what is held against what is said."""
