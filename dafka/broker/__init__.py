"""A broker: a store that orders the records of topics in logs, and the coordinators of groups and transactions."""
