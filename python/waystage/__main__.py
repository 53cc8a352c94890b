"""`python -m waystage` is the command `waystage`."""

from waystage.cli.main import main

if __name__ == "__main__":
    main()
