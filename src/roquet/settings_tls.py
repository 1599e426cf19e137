"""What the settings say about TLS, as the ports and the connections of a server take it."""

from __future__ import annotations

import logging

from roquet.errors import BadSetting, ClientError
from roquet.net.connection import PLAIN, ConnectionOptions, Tls
from roquet.net.tls import DISABLED, ENFORCING, BadCertificate, ServerFiles, ServerTls
from roquet.settings import BrokerSettings, ServerSettings

log = logging.getLogger("roquet")


def server_tls(settings: ServerSettings) -> ServerTls:
    """What the ports do. Raises BadSetting when a file that is named cannot be used."""
    mode = settings.tls_server_mode
    if mode != DISABLED and not settings.tls_server_cert_path and not settings.tls_test_mode_enable:
        mode = DISABLED
        log.info("TLS is not offered: tls.test.mode.enable=false, and no certificate is named (tls.server.certPath)")
    files = ServerFiles(
        settings.tls_server_cert_path, settings.tls_server_key_path, settings.tls_server_key_password,
        settings.tls_server_trust_cert_path, settings.tls_server_need_client_auth,
    )  # fmt: skip
    try:
        return ServerTls(mode, files)
    except BadCertificate as error:
        raise BadSetting(f"TLS: {error}") from None


def broker_connection(settings: BrokerSettings) -> ConnectionOptions:
    """How the broker connects to name servers, its master and members. Raises BadSetting as above."""
    if not (settings.use_tls or settings.tls_enable or settings.tls_server_mode == ENFORCING):
        return PLAIN
    tls = Tls(
        settings.tls_client_trust_cert_path or None,
        settings.tls_client_cert_path or None,
        settings.tls_client_key_path or None,
        verify=verifies(settings),
        key_password=settings.tls_client_key_password or None,
        check_host=settings.tls_client_check_host,
    )
    try:
        tls.context()
    except ClientError as error:
        raise BadSetting(f"TLS: {error}") from None
    return ConnectionOptions(tls=tls)


def verifies(settings: BrokerSettings) -> bool:
    """Whether the broker wants to know whom it talks to."""
    trial = settings.tls_test_mode_enable and not settings.tls_client_trust_cert_path
    return settings.tls_client_auth_server and not trial
