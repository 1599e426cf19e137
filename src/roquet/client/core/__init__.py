"""The client's brain: pure coroutines (see tasks.py), driven by tick() and by a Caller. The simulation runs it without asyncio."""
