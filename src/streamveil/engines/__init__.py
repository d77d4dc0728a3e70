"""Where it runs: one process, or Spark; the same operators."""
