"""Tenants: registry, plans, lanes, provisioning, moves, audit, and accounts that others provision."""
