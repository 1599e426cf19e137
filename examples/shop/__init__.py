"""A shop of three services. No order is lost and none is paid twice, whatever is killed, and when.

    PUT /orders/17 ──> shop.orders ──> a row in `orders` and one in the outbox, in one transaction
                       shop.relay  ──> publishes what is in the outbox
                       shop.payments ──> a row in `payments` and the mark "order 17 is paid", in one transaction

Start `roquet up` and, in the directory `examples`, each service in a terminal of its own:

    python -m shop.orders
    python -m shop.relay
    python -m shop.payments
    curl -X PUT http://127.0.0.1:8080/orders/17 -d '{"customer": "Ada", "cents": 1250}'

They read SHOP_DATABASE (a URL of SQLAlchemy; sqlite:///shop.db), SHOP_PORT (8080), SHOP_LEASE_S (30) and NAMESRV_ADDR.
`python -m soak.orders` kills each of them, and the broker, again and again, and counts.
"""
