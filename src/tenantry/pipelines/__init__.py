"""Pipelines on Spark: session, queries, sinks, projections, usage. Not built yet. Only here is pyspark imported."""
