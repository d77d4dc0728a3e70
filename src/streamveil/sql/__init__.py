"""The SQL dialect: from text to a plan."""
