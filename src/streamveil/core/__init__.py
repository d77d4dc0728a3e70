"""The promise: everything that decides a guarantee. Imports only errors and types of ours."""
