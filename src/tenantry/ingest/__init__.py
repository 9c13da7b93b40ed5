"""HTTP intake of events, with quotas. Not built yet."""
