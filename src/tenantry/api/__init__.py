"""The HTTP API. Not built yet."""
