"""Interpreters of scenarios that are data: scripts with given, when and then steps, and the grammar's sentences."""
