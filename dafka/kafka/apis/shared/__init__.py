"""What several APIs use."""
