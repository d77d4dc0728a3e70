"""streamveil: differentially private answers over data that never stops changing."""

__version__ = "0.1.0"
