"""The HTTP API: tenants, plans, credentials, keys, audit, and the provisioning webhook."""
