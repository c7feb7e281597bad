"""Authentication and authorization: users, their passwords and tokens, and their permissions."""
