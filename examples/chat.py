"""A chat: every member gets every line, in one order. Run `roquet up` first, then this file in several terminals, each with a name:

    python examples/chat.py Ada

Type a line, and all see it; Ctrl-D leaves. Who comes back under the same name is shown what was said meanwhile.
"""

import os
import sys

from roquet.client.sync import Message, Producer, PushConsumer, ReceivedMessage

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
ROOM = "example-chat"


def show(message: ReceivedMessage) -> None:
    print(f"{message.properties['who']}: {message.body.decode()}", flush=True)


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "Somebody"
    # Broadcasting: members of a group do not share the messages, each gets them all. Orderly: one after the other.
    # Under its own instance name a member keeps its own progress, in a file on its machine.
    member = PushConsumer("example_chat", NAMESRV, broadcasting=True, orderly=True, instance_name=name)
    member.subscribe(ROOM, "*", show)

    with Producer("example_chat", NAMESRV, instance_name=name) as producer:
        producer.create_topic(ROOM, queues=1)  # one queue is one order: all see the same conversation

        def say(text: str) -> None:
            producer.send(Message(ROOM, text.encode(), properties={"who": name}))

        with member:
            say("(joined)")
            for line in sys.stdin:
                if line.strip():
                    say(line.strip())
            say("(left)")


if __name__ == "__main__":
    main()
