"""The coordinators of groups and transactions, whose state is in replicated logs."""
