"""Mutants: one small mistake at a time, planted in a copy of this checkout, and who finds it.

    python -m loadtest.mutants                                       every patch: its tests, then 60 seeds
    python -m loadtest.mutants NAME … --tests-only                   some, by name, and no simulator
    python -m loadtest.mutants mine.patch --seeds 20 --from 500      one of your own, with other seeds

    trial       a patch, the copy with its mistake, and the finders
    __main__    the command

`patches/` has one file for each mistake: a unified diff, as `git diff` prints it, under a header of three lines.

    mistake: A stopping worker judges by its last shard alone whether it holds anything.
    room: worker
    tests: tests/spec/test_08_stopping.py tests/faults/test_workers.py

A mistake is small, of the kind that a refactoring makes, and somebody who uses wheelq could notice it. `tests` says who
is supposed to see it. A finding counts only if the same test, or the same seed, has nothing to say without the patch.
"""
