"""What may be asked: expressions, SQL, the Python builder, and the checks of a plan."""
