"""The face of bindings: App.from_file, app.bind, app.output, app.bean.

app = App.from_file("application.yml")

@app.bind("one-to-one-input")
async def receive(order: Order) -> None: ...

await app.output("one-to-one-output").send(Order(...))
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, overload

from roquet.app.bindings.binding import CLIENT_SETTINGS, client_settings
from roquet.app.bindings.files import read
from roquet.app.bindings.keys import Scope
from roquet.app.bindings.layout import Layout, layout_of
from roquet.app.bindings.wiring import Bindings
from roquet.app.handlers import Listener
from roquet.app.payloads import Decode
from roquet.client import Credentials, Tls
from roquet.client.functions import name_of
from roquet.client.served import Served
from roquet.errors import ClientError, Refused
from roquet.wire.names import check_group

if TYPE_CHECKING:
    from roquet.app.app import App
    from roquet.app.bindings.output import Output

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Wired:
    """What an App has from a file in Spring's layout."""

    _bindings: Bindings | None = None

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        *more: str | os.PathLike[str],
        namesrv: str | Sequence[str] | None = None,
        beans: Mapping[str, Any] | None = None,
        profiles: Collection[str] | None = None,
        environ: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Self:
        """An app whose topics, groups and settings stand in a Spring Cloud Stream file (docs/bindings.md): YAML, or .properties.

        What a later file says overrides an earlier one. `namesrv` goes before the file's. `beans`: objects that the file names, as
        app.bean() takes them. `profiles`: those that are active, for documents that name one; None: $SPRING_PROFILES_ACTIVE, else the
        file's. `environ`: for ${PLACEHOLDERS}; None: the process's. The rest are App's own settings.

        Raises BadBindings, which names the file, the line and the key, for what is unknown, not served, or cannot work."""
        layout = layout_of(read([path, *more], profiles, os.environ if environ is None else environ))
        found = of_binder(layout)
        settings = {**found, **options}
        intervals = {key: settings.pop(key) for key in CLIENT_SETTINGS.values() if key in settings}
        settings["consumer"] = {**intervals, **settings.get("consumer", {})}
        intervals.pop("persist_ms", None)
        settings["producer"] = {**intervals, **settings.get("producer", {})}
        servers = namesrv or settings.pop("namesrv", None)
        settings.pop("namesrv", None)
        app = cls(servers, **settings)  # type: ignore[call-arg]
        app._bindings = Bindings(cast("App", app), layout, os.fspath(path))
        for name, bean in (beans or {}).items():
            app._bindings.beans[name] = bean
        return app

    @property
    def bindings(self) -> Bindings:
        """What the file says. Raises ClientError where the app was not made from a file."""
        if self._bindings is None:
            raise ClientError('this app has no bindings; make it from a file: App.from_file("application.yml")')
        return self._bindings

    @overload
    def bind(self, name: F, /) -> F: ...

    @overload
    def bind(
        self,
        name: str | None = None,
        /,
        *,
        condition: str | None = None,
        decode: Decode | None = None,
        reply: bool = False,
        wrap: Callable[[Listener], Listener] | None = None,
    ) -> Callable[[F], F]: ...

    def bind(
        self,
        name: Any = None,
        /,
        *,
        condition: str | None = None,
        decode: Decode | None = None,
        reply: bool = False,
        wrap: Callable[[Listener], Listener] | None = None,
    ) -> Any:
        """Decorator: this function handles the messages of a binding of the file, such as "one-to-one-input".

        Without a name, or with that of a function, it is Spring Cloud Function's: `uppercase` takes uppercase-in-0, and what it returns
        goes to uppercase-out-0 if the file has that. `condition`: only messages for which it is true, as headers['key'] == 'tag'. The
        others are those of app.consumer. Raises ClientError for what cannot work."""

        def register(function: Any, frame: FrameType) -> Any:
            wanted = name_of(function) if name is None or callable(name) else name
            from roquet.app.app import names_around

            self.bindings.bind(
                wanted, function, names_around(frame), condition=condition, decode=decode, reply=reply, wrap=wrap,
            )  # fmt: skip
            return function

        if callable(name):
            return register(name, sys._getframe(1))
        return lambda function: register(function, sys._getframe(1))

    def output(self, name: str) -> Output:
        """Where an output binding of the file sends: await app.output("one-to-one-output").send(value)."""
        return self.bindings.output(name)

    def bean(self, name: str, value: T) -> T:
        """Give an object the name that the file has for it: a transactionListener with execute() and check(), a function that chooses a
        queue, or one that makes a partition key."""
        self.bindings.beans[name] = value
        return value

    def _bound_members(self, *, consuming: bool) -> list[Served]:
        return [] if self._bindings is None else self._bindings.members(consuming=consuming)


def of_binder(layout: Layout) -> dict[str, Any]:
    """App's settings that stand under spring.cloud.stream.rocketmq.binder."""

    def get(name: str) -> Any:
        found = layout.app.get((Scope.BINDER, name))
        return None if found is None else found.value

    found: dict[str, Any] = {}
    if servers := get("name-server"):
        found["namesrv"] = [one.strip() for text in servers for one in text.replace(",", ";").split(";") if one.strip()]
    key, secret = get("access-key"), get("secret-key")
    if key and secret:
        found["credentials"] = Credentials(key, secret)
    elif key or secret:
        given = layout.app[Scope.BINDER, "access-key" if key else "secret-key"]
        raise given.entry.wrong(f"stands alone; {'secret-key' if key else 'access-key'} must stand beside it")
    if space := get("namespace"):
        found["namespace"] = space
    if unit := get("unit-name"):
        found["unit_name"] = unit
    if get("use-tls"):
        found["tls"] = Tls()
    found.update(client_settings(get))
    group = get("group") or layout.name
    if group and is_group(group):
        found["group"] = group
    return found


def is_group(name: str) -> bool:
    try:
        check_group(name)
    except Refused:
        return False
    return True
