"""Whatever a handler raises becomes an Exception, except when its coroutine is closed."""

from __future__ import annotations

import asyncio

import pytest

from wheelq.worker.outcome import as_failure, traceback_text


async def test_an_exception_is_the_failure() -> None:
    error = ValueError("no")
    assert as_failure(error, asyncio.current_task()) is error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SystemExit(3), "the handler called sys.exit(3)"),
        (KeyboardInterrupt("stop"), "the handler raised KeyboardInterrupt: stop"),
        (GeneratorExit(), "the handler raised GeneratorExit: "),
    ],
)
async def test_anything_else_becomes_a_runtime_error_that_names_it(error: BaseException, said: str) -> None:
    failure = as_failure(error, asyncio.current_task())
    assert isinstance(failure, RuntimeError)
    assert str(failure) == said
    assert type(error).__name__ in traceback_text(failure)


def test_a_coroutine_that_is_closed_has_not_failed() -> None:
    """The event loop of its task is gone, whether or not another one runs."""

    async def in_another_loop() -> None:
        with pytest.raises(GeneratorExit):
            as_failure(GeneratorExit(), gone)

    loop = asyncio.new_event_loop()
    gone = loop.create_task(asyncio.sleep(0))
    loop.run_until_complete(gone)
    loop.close()
    with pytest.raises(GeneratorExit):
        as_failure(GeneratorExit(), gone)
    asyncio.run(in_another_loop())
