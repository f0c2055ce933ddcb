"""Trying a failed step again: the option `retries=`. The policy is tenacity's, carried out by `call.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Union

from .errors import UnknownOutcome, UsageError

if TYPE_CHECKING:
    from tenacity import Retrying

Retries = Union[int, "Retrying", None]

_FIRST_WAIT, _LONGEST_WAIT = 1, 60  # seconds: each wait is twice the one before, and up to a second more, at random
_FINAL = (UsageError, UnknownOutcome)  # another try would fail in the same way


class Policy:
    """Whether and when a failed step is tried again."""

    def __init__(self, retrying: Retrying) -> None:
        self._retrying = retrying

    def counter(self) -> Counter:
        return Counter(self._retrying.copy())


def policy_of(option: Any, step: str) -> Policy | None:
    """The policy that `retries=` asks for; None for none."""
    if option is None or (option == 0 and type(option) is int):
        return None
    try:
        import tenacity
    except ImportError:
        raise UsageError(f"step {step}: retries= needs the package tenacity: pip install 'oncemore[retry]'") from None
    if isinstance(option, int) and not isinstance(option, bool) and option > 0:
        wait = tenacity.wait_exponential_jitter(_FIRST_WAIT, _LONGEST_WAIT)
        return Policy(tenacity.Retrying(stop=tenacity.stop_after_attempt(option + 1), wait=wait))
    if not isinstance(option, tenacity.Retrying):
        raise UsageError(
            f"step {step}: retries={option!r} is not supported; use a number of further tries or a tenacity.Retrying(...), "
            f"for coroutine functions, too"
        )
    if option.retry_error_callback is not None or any(
        isinstance(each, (tenacity.retry_if_result, tenacity.retry_if_not_result)) for each in _parts(option.retry)
    ):
        raise UsageError(
            f"step {step}: retries= decides by exceptions only; raise one in the step instead of using retry_if_result or "
            f"retry_error_callback"
        )
    return Policy(option)


def _parts(condition: Any) -> Iterator[Any]:
    """A condition of tenacity, and those that it combines."""
    yield condition
    for each in getattr(condition, "retries", ()):
        yield from _parts(each)


class Counter:
    """Counts the tries of one call. `number` is the current one, from 1; `most` is their maximum, 0 if unknown."""

    def __init__(self, retrying: Retrying) -> None:
        from tenacity import RetryCallState

        self._retrying = retrying
        self._state = RetryCallState(retrying, None, (), {})
        self.most: int = getattr(retrying.stop, "max_attempt_number", 0)
        retrying.begin()

    @property
    def number(self) -> int:
        return self._state.attempt_number

    def begin(self) -> None:
        """A try is about to begin."""
        self._retrying.iter(self._state)

    def wait_after(self, error: Exception) -> float | None:
        """The seconds to wait before the next try, now that this one raised an error; None if it was the last."""
        if isinstance(error, _FINAL) or not self._retrying.enabled:
            return None
        self._state.set_exception((type(error), error, error.__traceback__))
        try:
            wait: Any = self._retrying.iter(self._state)
        except Exception as raised:
            if raised is error or isinstance(raised, self._retrying.retry_error_cls):
                return None
            raise  # a function of the policy failed
        self._state.prepare_for_next_attempt()
        return float(wait)
