"""Runs the log of metadata at a broker: joins a cluster, applies its commands, and requests or makes changes."""
