"""The transaction coordinator, and the assignment of producer ids."""
