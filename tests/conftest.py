"""Async tests run under trio; two clocks to choose from. No plugin: these lines are all that is needed."""

import inspect
import signal
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import trio
import trio.testing

# A runner that starts us in the background has SIGINT ignored, and children inherit that; tests that interrupt one
# would wait for ever. A handler of ours becomes the default again in a child.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let no test leave a note about its data directory in the home of whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def mock_clock() -> trio.testing.MockClock:
    """Return a clock that only moves when the test moves it."""
    return trio.testing.MockClock()


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    """Return a clock that jumps to the next deadline when everybody waits. Never with threads or processes."""
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    """Run a coroutine test under trio, on the clock that it asked for."""
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        pyfuncitem.obj = _in_trio(pyfuncitem.obj)
    return (yield)


def _in_trio(test: Callable[..., object]) -> Callable[..., object]:
    def run(**arguments: object) -> object:
        clocks = [value for value in arguments.values() if isinstance(value, trio.abc.Clock)]
        return trio.run(partial(test, **arguments), clock=clocks[0] if clocks else None)  # type: ignore[arg-type]

    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    return run
