"""The observer's survey of a whole cluster."""
