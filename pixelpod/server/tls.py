"""TLS from PEM files: what a server shows, whom it believes, and the same for a client of ours."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc

from pixelpod.server.reloading import FileRefused, Reloaded, read_file


def server_certificates(
    cert_file: Path, key_file: Path, client_ca_file: Path | None
) -> Reloaded[grpc.ServerCertificateConfiguration]:
    """Return a server's certificates, which follow their files.

    Args:
        cert_file: The certificate chain, the server's own first.
        key_file: Its private key, without a password.
        client_ca_file: Certificates of the authorities whose clients are let in; None lets in all.

    Raises:
        FileRefused: if a file can't be used, or the key is not the certificate's.
    """

    def load() -> grpc.ServerCertificateConfiguration:
        _check_pair(cert_file, key_file)
        pair = (read_file(key_file), read_file(cert_file))
        return grpc.ssl_server_certificate_configuration([pair], _read_authorities(client_ca_file))

    files = (cert_file, key_file) if client_ca_file is None else (cert_file, key_file, client_ca_file)
    return Reloaded(files, load)


def server_credentials(
    certificates: Reloaded[grpc.ServerCertificateConfiguration], *, clients_need_certificate: bool
) -> grpc.ServerCredentials:
    """Return credentials that show each new connection the certificates of that moment."""
    return grpc.dynamic_ssl_server_credentials(
        certificates.value, lambda: certificates.value, require_client_authentication=clients_need_certificate
    )


def channel_credentials(
    ca_file: Path, cert_file: Path | None, key_file: Path | None
) -> Reloaded[grpc.ChannelCredentials]:
    """Return credentials for channels opened from now on, which follow their files.

    Args:
        ca_file: Certificates of the authorities whose servers are believed.
        cert_file: The client's own certificate chain, for mutual TLS.
        key_file: Its private key, without a password.

    Raises:
        FileRefused: if a file can't be used, or the key is not the certificate's.
    """

    def load() -> grpc.ChannelCredentials:
        authorities = _read_authorities(ca_file)
        if cert_file is None or key_file is None:
            return grpc.ssl_channel_credentials(authorities)
        _check_pair(cert_file, key_file)
        return grpc.ssl_channel_credentials(authorities, read_file(key_file), read_file(cert_file))

    return Reloaded([file for file in (ca_file, cert_file, key_file) if file is not None], load)


def _check_pair(cert_file: Path, key_file: Path) -> None:
    """Check a certificate and its key, which gRPC itself does only at the first handshake.

    Raises:
        FileRefused: if they can't be used together.
    """
    for file in (cert_file, key_file):
        read_file(file)
    try:
        # The password keeps OpenSSL from asking for one on a terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert_file, key_file, password="")
    except (OSError, ValueError) as error:
        raise FileRefused(f"{cert_file} and {key_file} are no certificate and its key in PEM: {error}") from error


def _read_authorities(file: Path | None) -> bytes | None:
    if file is None:
        return None
    content = read_file(file)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode("ascii"))
    except (OSError, ValueError) as error:
        raise FileRefused(f"{file} holds no certificates in PEM: {error}") from error
    return content
