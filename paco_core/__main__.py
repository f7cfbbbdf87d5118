"""``python -m paco_core`` = ``paco``."""

if __name__ == "__main__":
    from paco_core.cli.commands import main

    main()
