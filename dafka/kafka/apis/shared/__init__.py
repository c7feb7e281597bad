"""Helpers that several APIs share."""
