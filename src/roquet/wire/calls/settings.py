"""Settings of brokers and name servers, read and changed while they run."""

from __future__ import annotations

from roquet.wire.calls.call import Call, Nothing, Properties
from roquet.wire.codes import RequestCode as Code
from roquet.wire.headers import Header, wire


class BrokerConfigResponseHeader(Header):
    """The DataVersion as JSON text."""

    version: str = wire("version")


UPDATE_BROKER_CONFIG = Call(Code.UPDATE_BROKER_CONFIG, Nothing, Properties, Nothing, Nothing)
GET_BROKER_CONFIG = Call(Code.GET_BROKER_CONFIG, Nothing, Nothing, BrokerConfigResponseHeader, Properties)
UPDATE_NAMESRV_CONFIG = Call(Code.UPDATE_NAMESRV_CONFIG, Nothing, Properties, Nothing, Nothing)
GET_NAMESRV_CONFIG = Call(Code.GET_NAMESRV_CONFIG, Nothing, Nothing, Nothing, Properties)
