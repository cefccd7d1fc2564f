"""`python -m wheelq` is `wheelq`."""

from __future__ import annotations

from wheelq.cli import main

main()
