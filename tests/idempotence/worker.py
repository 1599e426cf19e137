"""A consumer that is to be killed: it handles the message `done`, and stands in the handler of the message `killed`.

python -m tests.idempotence.worker KIND URL NUMBER
"""

from __future__ import annotations

import sys
import threading

from tests.idempotence.shops import Gate, message, opened


def main(kind: str, url: str, number: str) -> None:
    with opened(kind, url, int(number)) as shop:
        assert shop.call(shop.guard(), message("done")) is None
        gate = Gate()
        shop.start(shop.guard(gate=gate), message("killed"))
        gate.reached.wait()
        print("in the handler", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
