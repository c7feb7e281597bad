"""The metadata of a cluster: topics, brokers, and the replicas of each log."""
