"""The broker: a store that orders the records of topics in logs, with coordinators of groups and transactions."""
