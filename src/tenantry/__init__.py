"""Tenantry: event pipelines for many tenants on one platform."""
