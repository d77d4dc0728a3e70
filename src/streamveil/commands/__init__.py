"""The commands of the command line, a few lines each over the library; `cli` puts them together."""
