"""Where the program begins: the `penstock` script, and `python -m penstock.cli`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command that `sys.argv` says, and exit with its code."""
    try:
        import click  # noqa: F401
        import rich  # noqa: F401
    except ImportError as error:
        # The script is installed with the engine, and its libraries only with the extra.
        sys.exit(f"error: the command line needs the package {error.name!r}; install it with: pip install 'penstock[cli]'")
    from penstock.cli import interrupts, output
    from penstock.cli.program import program

    output.prepare_streams()
    interrupts.install()
    program.main(prog_name="penstock")


if __name__ == "__main__":
    main()
