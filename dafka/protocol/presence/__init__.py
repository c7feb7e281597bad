"""Who is there, who they are, and what is done at their word."""
