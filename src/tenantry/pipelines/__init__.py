"""Pipelines on Spark: session, queries, sinks, projections, usage. Not built yet. The only room that imports pyspark."""
