"""What can be known of a whole cluster from outside."""
