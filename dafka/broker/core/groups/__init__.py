"""The coordinator of groups: members, assignments and committed offsets."""
