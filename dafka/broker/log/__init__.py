"""Appending to logs and reading them, retention and compaction."""
