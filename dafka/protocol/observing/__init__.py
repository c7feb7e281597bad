"""What an observer finds out about a whole cluster."""
