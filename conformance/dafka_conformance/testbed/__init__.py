"""The testbed of one scenario: the target, the suite's own nodes and tower, and the checks of the target's messages."""
