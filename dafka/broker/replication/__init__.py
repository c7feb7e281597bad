"""Carries out what the replicas of this broker decide."""
