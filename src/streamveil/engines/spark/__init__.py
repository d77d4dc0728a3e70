"""The same query on Spark: Spark's source log, shuffle, scheduling and recovery; our operators."""
