"""Bindings: the handlers, outputs and producers that an app makes of its file."""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from roquet.app.bindings.binding import RC, RP, Binding
from roquet.app.bindings.conditions import condition_of
from roquet.app.bindings.files import uniform
from roquet.app.bindings.keys import Scope
from roquet.app.bindings.layout import ALL, Layout
from roquet.app.bindings.output import Output
from roquet.app.handlers import Listener
from roquet.app.payloads import Decode
from roquet.client import Producer, TransactionProducer
from roquet.client.functions import name_of
from roquet.client.served import Served
from roquet.errors import ClientError

if TYPE_CHECKING:
    from roquet.app.app import App

log = logging.getLogger(__name__)

IN, OUT = "-in-0", "-out-0"
"""How Spring Cloud Function names the bindings of a function."""
ROCKETMQ = "rocketmq"


class Bindings:
    """The bindings of an app: those of its file, and what handlers and outputs were made of them."""

    def __init__(self, app: App, layout: Layout, file: str) -> None:
        self.app = app
        self.layout = layout
        self.file = file
        self.beans: dict[str, Any] = {}
        self.outputs: dict[str, Output] = {}
        self._producers: dict[str, Producer] = {}
        self._functions: set[str] = set()
        self._bound: set[str] = set()
        for binding in self:
            binding.consuming()
            binding.check_output()
            layout.notices += binding.notices()
        for notice in self.notices:
            log.warning("! %s", notice)

    @property
    def notices(self) -> list[str]:
        """What is in the file and has no effect, each with its reason."""
        return self.layout.notices

    @property
    def names(self) -> list[str]:
        """Of the bindings that the file has."""
        return [name for name in self.layout.bindings if name != ALL]

    def __getitem__(self, name: str) -> Binding:
        return Binding(name, {**self.layout.bindings.get(ALL, {}), **self.layout.bindings.get(name, {})})

    # -- names

    def definitions(self) -> list[str]:
        """The functions of spring.cloud.function.definition."""
        found: list[str] = []
        for scope, key in ((Scope.FUNCTION, "definition"), (Scope.STREAM, "function.definition")):
            if (setting := self.layout.app.get((scope, key))) is not None:
                for name in setting.value.split(";"):
                    if "|" in name or "," in name:
                        raise setting.entry.wrong(f"composes functions ({name.strip()}), which is not served; write one Python function")
                    if name.strip():
                        found.append(name.strip())
        return found

    def _found(self, name: str, end: str) -> str | None:
        """The binding of this name, or of the function of this name."""
        known = [*self.names, *self.layout.aliases]
        for one in (name, f"{name}{end}"):
            if one in known:
                return self.layout.aliases.get(one, one)
        for one in known:
            if uniform(one) == uniform(name) or (one.endswith(end) and uniform(one.removesuffix(end)) == uniform(name)):
                return self.layout.aliases.get(one, one)
        for function in self.definitions():
            if uniform(function) == uniform(name) and end == IN:
                return f"{function}{end}"
        return None

    def named(self, name: str, end: str) -> Binding:
        """Raises ClientError with the nearest one."""
        found = self._found(name, end)
        if found is None:
            near = difflib.get_close_matches(name, self.names, 1, 0.0)
            raise ClientError(
                f"{self.file} has no binding {name!r}; the nearest is {near[0]!r}" if near else f"{self.file} has no bindings"
            )
        binding = self[found]
        if binding.binder != ROCKETMQ:
            raise ClientError(f"binding {found!r} of {self.file} is for {binding.binder!r}; only RocketMQ is served here")
        return binding

    # -- handlers

    def bind(
        self,
        name: str,
        function: Callable[..., Any],
        local_names: Mapping[str, Any],
        *,
        condition: str | None,
        decode: Decode | None,
        reply: bool,
        wrap: Callable[[Listener], Listener] | None,
    ) -> None:
        """See App.bind."""
        binding = self.named(name, IN)
        self._functions.add(uniform(name))
        self._bound.add(binding.name)
        out = self._output_of(name, binding)
        if out is not None:
            self.app._publish_results(function, out)
        if not binding.is_consumed:
            log.warning("! binding %s is disabled (enabled: false): handler %s gets nothing", binding.name, name_of(function))
            return
        given = binding.consuming()
        if "group" not in {key for scope, key in binding.settings if scope in (Scope.BINDING, RC)}:
            log.warning("! binding %s has no group; it consumes as %s. Set group: in the file", binding.name, given["group"])
        for topic in binding.topics:
            count = len(self.app.handlers)
            register: Any = self.app.consumer(topic, when=condition_of(condition), decode=decode, reply=reply, wrap=wrap, **given)
            register(function, local_names)
            for handler in self.app.handlers[count:]:
                handler.function = binding.attempts.around(function)

    def _output_of(self, name: str, binding: Binding) -> Output | None:
        base = binding.name.removesuffix(IN) if binding.name.endswith(IN) else name
        for one in (*self.names, *self.layout.aliases):
            if one.endswith(OUT) and uniform(one.removesuffix(OUT)) == uniform(base):
                return self.output(one)
        return None

    # -- outputs

    def output(self, name: str) -> Output:
        """See App.output."""
        binding = self.named(name, OUT)
        if "," in binding.destination:
            raise ClientError(f"binding {binding.name!r} of {self.file} has several destinations, and an output sends to one")
        if binding.name not in self.outputs:
            made = self.outputs[binding.name] = Output(self.app, self, binding)
            self.app.publishers.append(made)
        return self.outputs[binding.name]

    def bean_of(self, binding: Binding, scope: Scope, key: str) -> Any:
        """The object that this key names; None: it names none. Raises ClientError where nobody gave it."""
        name = binding.get(scope, key)
        if name is None:
            return None
        for known, bean in self.beans.items():
            if uniform(known) == uniform(name):
                return bean
        near = difflib.get_close_matches(name, list(self.beans), 1, 0.0)
        hint = f"; the nearest bean is {near[0]!r}" if near else ""
        raise binding.wrong(scope, key, f"is {name!r}, and no bean has this name{hint}; give it before the start: app.bean({name!r}, ...)")

    def producer_of(self, output: Output) -> Producer | None:
        """That which sends for it; None: the app does not run."""
        return self._producers.get(output.name) or (self.app._producer if not self._has_own(output.binding) else None)

    def _has_own(self, binding: Binding) -> bool:
        return binding.is_transactional or bool(binding.producer_group) or bool(binding.producing())

    def members(self, *, consuming: bool) -> list[Served]:
        """The producers of outputs that do not use the app's own, and a last member that waits for what is sent async. Raises ClientError
        where the file names a bean that nobody gave, or (consuming) a function that nobody bound."""
        if consuming:
            self._check_bound()
        shared: dict[tuple[Any, ...], Producer] = {}
        listeners: dict[str, str] = {}
        for binding in self:
            if binding.name not in self._bound and self._has_own(binding) and binding.binder == ROCKETMQ and "," not in binding.destination:
                self.output(binding.name)  # a broker may ask about its transactions; and a handler may use it later
        for output in self.outputs.values():
            binding = output.binding
            if not self._has_own(binding) or not binding.get(RP, "enabled", True):
                continue
            group = binding.producer_group or binding.destination
            listener = binding.get(RP, "transaction-listener") if binding.is_transactional else None
            if listener is not None and listeners.setdefault(group, listener) != listener:
                raise binding.wrong(
                    RP, "transaction-listener", f"is {listener!r}, but group {group!r} has {listeners[group]!r}; a broker asks any producer"
                    " of a group: give each listener a group of its own"
                )  # fmt: skip
            key = (group, listener, *sorted(binding.producing().items()))
            if key not in shared:
                shared[key] = self._made(binding, group)
            self._producers[output.name] = shared[key]
        return [*shared.values(), Drain(self)]

    def _made(self, binding: Binding, group: str) -> Producer:
        app = self.app
        settings: dict[str, Any] = app._settings(app._producer_settings, binding.producing())
        if not binding.is_transactional:
            return Producer(group, app.namesrv, **settings)
        listener = self.bean_of(binding, RP, "transaction-listener")
        for method in ("execute", "check"):
            if not callable(getattr(listener, method, None)):
                raise binding.wrong(
                    RP, "transaction-listener", f"is a {type(listener).__name__} without {method}(); it needs execute(message, argument)"
                    " and check(message), which return a TransactionState"
                )  # fmt: skip
        return TransactionProducer(group, app.namesrv, execute=listener.execute, check=listener.check, **settings)

    def _check_bound(self) -> None:
        for function in self.definitions():
            takes = f"{function}{IN}" in self.names or f"{function}{OUT}" not in self.names
            if takes and uniform(function) not in self._functions and f"{function}{IN}" not in self._bound:
                raise ClientError(
                    f"{self.file} names the function {function!r} (spring.cloud.function.definition), and no handler is bound to it;"
                    f" write @app.bind({function!r}) above one"
                )
        for binding in self:
            if (
                binding.name not in self._bound
                and binding.get(Scope.BINDING, "group")
                and binding.binder == ROCKETMQ
                and binding.is_consumed
            ):
                log.warning("! binding %s of %s has a group, and no handler: nothing is consumed", binding.name, self.file)

    async def drained(self) -> None:
        """Wait until brokers have answered for all that was sent async."""
        for output in self.outputs.values():
            await output.drained()

    def __iter__(self) -> Iterator[Binding]:
        return map(self.__getitem__, self.names)

    def __repr__(self) -> str:
        return f"<Bindings of {self.file}: {', '.join(self.names)}>"


class Drain(Served):
    """Closed before the producers are: what was sent async shall arrive."""

    def __init__(self, bindings: Bindings) -> None:
        self.bindings = bindings
        self._closed = asyncio.Event()

    async def start(self) -> Any:
        return self

    async def close(self) -> None:
        await self.bindings.drained()
        self.bindings._producers.clear()
        self._closed.set()

    async def closed(self) -> None:
        await self._closed.wait()
