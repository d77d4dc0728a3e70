"""The same query on Spark: its source log, shuffle, scheduling and recovery; our operators."""
