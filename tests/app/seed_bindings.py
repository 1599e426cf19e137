"""The blocks of YAML that the seeds show, in their layout: fragments, indented as they stand in the document, with their slips."""

from __future__ import annotations

PLAIN = """\
      bindings:
        one-to-one-input:
          destination: one-to-one  # the topic
          contentType: application/json
          group: one-to-one-cus-group # the consumers
          consumer:
            max-attempts: 1   # no retries here

      rocketmq:
        bindings:
          one-to-one-input:
            consumer:
              enabled: true # it is the default
          one-to-one-output:
            producer:
              group: test # the producers
              sync: true # wait for the broker
              delay-level-when-next-consume: -1 # a setting of consumers: it does nothing here
"""

BROADCAST = """\
      rocketmq:
        bindings:
          one-to-many-input:
            consumer:
              enabled: true # it is the default
              messageModel: BROADCASTING  # everybody gets everything
"""

ORDERED = """\
    stream:
      bindings:
        one-to-one-order-output:
          destination: one-to-one-order  # in order
          contentType: application/json
          producer:
            partition-key-expression: headers['orderId'] # what stays in order

    rocketmq:
      binder:
        one-to-one-order-input:
          consumer:
            enabled: true # it is the default
        one-to-one-order-output:
          producer:
            group: test-order # the producers
            sync: false # do not wait for the broker
            orderly: true # in order
"""

FILTERED = """\
  one-to-one-order-input:
    consumer:
      enabled: true # it is the default
      subscription:  yuan || a   # tags
      # sql: # or SQL
"""

TRANSACTIONS = """\
      rocketmq:
        bindings:
          one-to-one-trans-output:
            producer:
              group: one-to-one-trans-group # the producers
              producerType: Trans   # transactions
              sync: true # wait for the broker
              transactionListener: oneToOneTransListener     # decides
      stream:
        bindings:
          one-to-one-trans-output:
            destination: one-to-one-trans
            contentType: application/json
"""

TRANSACTION_CONSUMER = """\
    stream:
      bindings:
        one-to-one-trans-input:
          destination: one-to-one-trans
          contentType: application/json
          group: one-to-one-trans-cus-group # the consumers
"""

ALL = [PLAIN, BROADCAST, ORDERED, FILTERED, TRANSACTIONS, TRANSACTION_CONSUMER]
