"""Peers: beacons, connections, identities, and limits on what a peer may cause."""
