"""Share groups: their members share the records of logs, and acknowledge each of them (KIP-932)."""
