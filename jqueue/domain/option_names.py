"""Errors about misspelled options: they suggest the closest option, and name the method that the user called.

Python itself suggests a name only from 3.13 on. It names the function that refused, which may be an internal one.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any, TypeVar, cast

Made = TypeVar("Made")
Function = TypeVar("Function", bound=Callable[..., Any])

_mark: Callable[[Callable[..., Any]], Callable[..., Any]] | None = getattr(inspect, "markcoroutinefunction", None)
"""Marks a function that returns a coroutine as a coroutine function, which spares a coroutine; from Python 3.12 on."""

Advice = Callable[[str, Collection[str]], str]
"""Takes an unknown name and the known ones. Returns the end of a sentence that suggests a name."""


def closest(name: str, known: Collection[str]) -> str:
    """Return the end of a sentence about an unknown name: the closest known one, or nothing if none is close."""
    close = difflib.get_close_matches(name, known, 1)
    return f": did you mean {close[0]!r}?" if close else ""


def unknown(verb: str, name: str, known: Collection[str], more: str = "", advice: Advice = closest) -> TypeError:
    """Return the error about an unknown option; the arguments are as in `check_names`."""
    options = f"(the options are {', '.join(known)})"
    return TypeError(f"{verb}: there is no option {name!r}{advice(name, known)} {options}{more}")


def check_names(
    verb: str, given: Collection[str], known: Collection[str], more: str = "", advice: Advice = closest
) -> None:
    """Check that all given options exist.

    Args:
        verb: the name of the verb that they were given to, for the error.
        given: the names of the given options.
        known: the names of the existing options.
        more: text to add to the error.
        advice: makes the suggestion.

    Raises:
        TypeError: an option does not exist. The message suggests another name.
    """
    for name in given:
        if name not in known:
            raise unknown(verb, name, known, more, advice)


def checks_option_names(kind: type[Made]) -> type[Made]:
    """Decorate a class: its constructor and its public methods answer a misspelled option with the right name."""
    for name, member in list(vars(kind).items()):
        if not inspect.isfunction(member) or _takes_any(member):
            continue
        if _checks_itself(member):
            inherited = next((found for base in kind.__mro__[1:] if (found := getattr(base, name, None))), None)
            member.__doc__ = member.__doc__ or inspect.getdoc(inherited)  # which finds no class in its name
        elif name == "__init__" or _is_verb(name, member):
            setattr(kind, name, with_plain_type_errors(member))
    return kind


def checks_itself(function: Function) -> Function:
    """Decorate a verb that is called for each job, and ends in `**options`. It calls `refuse_unlisted` if it gets any.

    It is not wrapped, so its calls cost nothing more. Its name stands without a class, so that Python's own error about
    missing arguments names no inner class.
    """
    function.__qualname__ = function.__name__
    return function


def _checks_itself(function: Callable[..., Any]) -> bool:
    return function.__qualname__ == function.__name__


def refuse_unlisted(verb: Callable[..., Any], given: Collection[str]) -> None:
    """Check options that were given to a verb against its signature.

    Raises:
        TypeError: the verb has no such option. The message suggests another name.
    """
    check_names(verb.__name__, given, _options(verb))


def _is_verb(name: str, function: Callable[..., Any]) -> bool:
    """Return True for a public method with keyword-only options.

    Methods that the queue calls for each job have none: they are not wrapped, so that they stay fast.
    """
    kinds = [each.kind for each in inspect.signature(function).parameters.values()]
    return not name.startswith("_") and inspect.Parameter.KEYWORD_ONLY in kinds


def _takes_any(function: Callable[..., Any]) -> bool:
    """Return True if a function takes any keyword, and checks the names itself."""
    parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    return any(each.kind is each.VAR_KEYWORD for each in parameters)


def _options(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names that a method takes by keyword, `self` excluded."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(each.name for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD))[1:]


def with_plain_type_errors(function: Function) -> Function:
    """Wrap a method so that arguments that do not fit raise a plainly worded error. It stays a coroutine function.

    A method that ends in `**options` and lists them in its signature takes the listed ones only.
    """
    lists = function.__code__.co_flags & inspect.CO_VARKEYWORDS and not _takes_any(function)
    known = frozenset(_options(function)) if lists else None

    def check(self: Any, options: Collection[str]) -> None:
        if known is not None and not known.issuperset(options):
            raise _plain(TypeError(), function, type(self), options)

    def call(self: Any, /, *given: Any, **options: Any) -> Any:
        if options:
            check(self, options)
        try:
            return function(self, *given, **options)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                raise  # the arguments fit: the error comes from inside the function
            raise _plain(error, function, type(self), options) from None

    async def awaited(self: Any, /, *given: Any, **options: Any) -> Any:
        return await call(self, *given, **options)

    functools.update_wrapper(call, function)
    if not inspect.iscoroutinefunction(function):
        return cast(Function, call)
    if _mark is not None:
        return cast(Function, _mark(call))
    return cast(Function, functools.wraps(function)(awaited))


def _plain(error: TypeError, function: Callable[..., Any], kind: type, options: Collection[str]) -> TypeError:
    """Return the error for arguments that do not fit a method."""
    name = kind.__name__ if function.__name__ == "__init__" else function.__name__
    known = _options(function)
    for option in options:
        if option not in known:
            return unknown(name, option, known)
    return TypeError(str(error).replace(f"{function.__qualname__}()", f"{name}()"))
