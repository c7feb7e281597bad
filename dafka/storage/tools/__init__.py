"""Tools over the `Storage` interface, for every plugin: copying, verifying, and JSON Lines."""
