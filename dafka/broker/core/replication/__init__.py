"""Replicates logs: elects leaders and decides which records are committed."""
