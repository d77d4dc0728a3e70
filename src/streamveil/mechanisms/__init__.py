"""How the promise is kept: mechanisms on arrays, without rows, clocks or files."""
