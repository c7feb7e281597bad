"""Who may do what: users, their passwords and tokens, and their permissions."""
