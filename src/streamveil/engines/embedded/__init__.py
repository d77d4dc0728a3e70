"""The embedded engine: one process, and state that may be larger than its memory."""
