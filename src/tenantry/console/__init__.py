"""The web console. Not built yet."""
