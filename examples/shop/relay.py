"""The relay: publishes the messages of orders that are committed. Several of them may run; they share the work."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from roquet.app import App
from roquet.outbox import Relay
from shop.database import engine, lease_s, outbox


@asynccontextmanager
async def relaying(app: App) -> AsyncIterator[None]:
    outbox.create(engine)
    async with Relay(outbox, engine, app.producer, lease_s=lease_s, send_timeout_ms=int(lease_s * 500), backoff_max_s=5):
        print("The relay publishes.", flush=True)
        yield


app = App(group="shop_relay", lifespan=relaying)

if __name__ == "__main__":
    app.run()
