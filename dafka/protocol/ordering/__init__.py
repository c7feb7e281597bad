"""A partition's records in order: what is here, what is missing, who may have it, what was not taken yet."""
