"""Tenants: registry, plans, lanes, provisioning, the accounts directory. Not built yet."""
