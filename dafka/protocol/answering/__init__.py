"""What is said to those who ask, whose turn it is, and what is said again."""
