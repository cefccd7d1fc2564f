"""`python -m wheelq` is `wheelq`."""

from wheelq.cli import main

main()
