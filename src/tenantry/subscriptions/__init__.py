"""Subscriptions: workers and how tenants are spread over them, push, dead letters, redrive, replay, scaling."""
