"""`python -m tunelight`: the command line."""

from __future__ import annotations

from tunelight.cli import main

if __name__ == "__main__":
    main()
