"""Target files for tests: a store that says nothing, one that ends at once, and a producer that runs already."""

from __future__ import annotations

DEAF = """
name = "deaf"
dialects = ["rfc46"]

[store]
command = ["{python}", "-c", "import time; time.sleep(100)", "{sub}", "{pub}"]
"""
ENDED = DEAF.replace("import time; time.sleep(100)", "raise SystemExit('no license')")
ATTACHED = """
name = "remote"
dialects = ["rfc46"]

[producer.attach]
sub = "tcp://127.0.0.1:1"
pub = "tcp://127.0.0.1:2"
topic = "orders"
"""
