"""A Spark data source for NATS JetStream, usable without the rest of Tenantry. Not built yet."""
