"""The presence of nodes: beacons, the nodes that they announce, the identity of peers, and limits on them."""
