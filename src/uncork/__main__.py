"""`python -m uncork`: the same as the command `uncork`."""

from uncork.cli import main

if __name__ == "__main__":
    main()
