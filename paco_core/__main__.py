"""``python -m paco_core`` = ``paco``."""

from paco_core.cli.commands import main

if __name__ == "__main__":
    main()
