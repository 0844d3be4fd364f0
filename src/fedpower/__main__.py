"""`python -m fedpower`: the command line."""

from fedpower.cli import main

if __name__ == "__main__":
    main(prog_name="fedpower")
