"""NATS: connections, keys, and the claims that operators, accounts and users are made of."""
