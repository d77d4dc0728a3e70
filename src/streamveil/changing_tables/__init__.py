"""Tables with inserts and deletes, answered at every trigger."""
