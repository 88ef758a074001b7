"""``python -m lowerkit``: the command line, for launchers that start modules."""

from lowerkit.cli.main import main

if __name__ == "__main__":
    main()
