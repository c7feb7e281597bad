"""Executes the effects of the replicas of this broker."""
