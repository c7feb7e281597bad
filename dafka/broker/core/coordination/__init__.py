"""The common parts of the coordinators of groups and of transactions."""
