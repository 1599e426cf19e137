"""module:app, as the commands take it: the App of that name in a module of the user's project."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
import traceback
from types import ModuleType
from typing import Any

from roquet.app.app import App
from roquet.errors import ClientError, error_text


class NoApp(ClientError):
    """module:app leads to no App: the text says what there is."""


class AppFailed(ClientError):
    """The module, or the function that makes the app, raised. The exception is its cause."""


def load(place: str) -> App:
    """The App. Without ":app" the name is `app`. It may also be a function without parameters that makes one. Modules are looked for in the
    current directory first. Raises NoApp and AppFailed."""
    name, _, attribute = place.partition(":")
    attribute = attribute or "app"
    if not name or name.endswith(".py") or "/" in name or os.sep in name:
        better = name.removesuffix(".py").strip("./").replace("/", ".").replace(os.sep, ".") or "module"
        raise NoApp(f"{place!r} is no module and app; write them as Python imports them: {better}:{attribute}")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    module = imported(name, here)
    found: Any = module
    for step in attribute.split("."):
        if not hasattr(found, step):
            raise NoApp(f"module {name!r} has no {attribute!r}; {hints(module, attribute)}")
        found = getattr(found, step)
    if not isinstance(found, App) and inspect.isroutine(found):
        try:
            found = found()
        except Exception as error:
            raise AppFailed(f"{place}() failed: {told(error)}") from error
    if not isinstance(found, App):
        raise NoApp(f"{name}:{attribute} is a {type(found).__name__}; expected is a roquet.app.App; {hints(module, attribute)}")
    return found


def imported(name: str, here: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise NoApp(
                f"there is no module {error.name!r} in {here} nor on Python's path; change to the directory of your project"
            ) from None
        raise AppFailed(f"module {name!r} cannot be imported: {told(error)}") from error
    except Exception as error:
        raise AppFailed(f"module {name!r} cannot be imported: {told(error)}") from error


def told(error: Exception) -> str:
    """In one line, with the place in the user's own code."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    if isinstance(error, SyntaxError):
        where = f" ({error.filename}, line {error.lineno})"
        return f"SyntaxError: {error.msg}{where}"
    here = os.getcwd() + os.sep
    own = [frame for frame in frames if frame.filename.startswith(here) and "site-packages" not in frame.filename] or frames[1:]
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"{error_text(error)}{where}"


def hints(module: ModuleType, wanted: str) -> str:
    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    if apps:
        near = difflib.get_close_matches(wanted, apps, 1) or apps
        return f"it has {module.__name__}:{near[0]}"
    return "make one there: app = App(...)"
