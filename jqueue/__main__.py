"""`python -m jqueue`: the same as `jqueue`."""

from jqueue.cli import main

if __name__ == "__main__":
    main()
