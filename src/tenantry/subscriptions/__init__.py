"""Subscriptions: workers, assignment, push, replay, redrive. Not built yet."""
