"""PostgreSQL: the pool, queries from `.sql` files, migrations."""
