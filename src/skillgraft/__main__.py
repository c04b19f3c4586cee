"""`python -m skillgraft`."""

from skillgraft.cli.main import main

if __name__ == "__main__":
    main()
