"""`python -m streamveil` is the command line."""

from streamveil.cli import main

if __name__ == "__main__":
    main()
