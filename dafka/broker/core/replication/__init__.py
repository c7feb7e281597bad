"""The replicas of a log: who leads it, and what is committed."""
