"""`python -m tenantry`: the command line, for whoever has no script on the PATH."""

from tenantry.cli import main

if __name__ == "__main__":
    main()
