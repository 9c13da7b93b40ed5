"""The real servers, from wheels, for one machine: nats-server, PostgreSQL, and a Java runtime for Spark."""
