"""The private dataflow: pure, vectorised, one micro-batch at a time."""
