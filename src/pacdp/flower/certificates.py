"""The certificates of a SuperLink, and the authentication keys of SuperNodes."""

import ipaddress
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pacdp.errors import InputError
from pacdp.keys import write_private_file
from pacdp.storage import require_new_file

# A new certificate must also be valid on machines whose clock is slightly behind.
_CLOCK_TOLERANCE = timedelta(hours=1)
_LOOPBACK = ("localhost", "127.0.0.1")


def create_authority(certificate: Path, key: Path, *, days: int = 3650) -> None:
    """Write a new certificate authority: its certificate, and its private key with mode 600.

    Neither file may exist. Only :func:`issue_server_certificate` needs the private key: store it
    offline, away from the machines of the federation.
    """
    require_new_file(certificate)
    private = ec.generate_private_key(ec.SECP384R1())
    name = _name("pacdp federation")
    usage = _key_usage(key_cert_sign=True, crl_sign=True)
    issued = (
        _start_certificate(name, private.public_key(), days, None)
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(private, hashes.SHA384())
    )
    write_private_file(key, _to_pem(private))
    certificate.write_bytes(issued.public_bytes(serialization.Encoding.PEM))


def issue_server_certificate(
    certificate: Path,
    key: Path,
    *,
    authority: Path,
    authority_key: Path,
    hosts: Iterable[str] = (),
    days: int = 365,
    start: datetime | None = None,
) -> None:
    """Write the certificate of a SuperLink, and its private key with mode 600.

    ``hosts`` are the names and IP addresses at which SuperNodes reach it, besides ``localhost`` and
    ``127.0.0.1``. The certificate is valid from ``start`` (default: now).
    """
    require_new_file(certificate)
    issuer, issuer_key = _load_authority(authority, authority_key)
    names = [_alternative_name(host) for host in dict.fromkeys((*_LOOPBACK, *hosts))]
    private = ec.generate_private_key(ec.SECP384R1())
    issued = (
        _start_certificate(_name("pacdp SuperLink"), private.public_key(), days, start)
        .issuer_name(issuer.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .sign(issuer_key, hashes.SHA384())
    )
    write_private_file(key, _to_pem(private))
    certificate.write_bytes(issued.public_bytes(serialization.Encoding.PEM))


def create_node_key(path: Path) -> Path:
    """Write the key pair of a SuperNode, and return the path of the public key.

    Both are in the format that Flower requires: ECDSA on P-384 in OpenSSH's format. The public key
    is written beside the private one with the suffix ``.pub``.

    >>> import tempfile
    >>> create_node_key(Path(tempfile.mkdtemp()) / "node.key").read_text().split()[0]
    'ecdsa-sha2-nistp384'
    """
    private = ec.generate_private_key(ec.SECP384R1())
    public = path.with_name(f"{path.name}.pub")
    require_new_file(public)
    write_private_file(
        path,
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        ),
    )
    public.write_bytes(
        private.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        + b"\n"
    )
    return public


def create_secret(path: Path) -> None:
    """Write the secret that a SuperExec shares with its SuperLink or SuperNode, with mode 600."""
    write_private_file(path, secrets.token_hex(32).encode())


def read_expiry(certificate: Path) -> datetime:
    """Return the expiry time of a certificate."""
    return _load_certificate(certificate).not_valid_after_utc


def _start_certificate(
    subject: x509.Name, public: ec.EllipticCurvePublicKey, days: int, start: datetime | None
) -> x509.CertificateBuilder:
    if days < 1:
        raise InputError(f"days: must be at least 1, not {days}")
    begin = start or datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - _CLOCK_TOLERANCE)
        .not_valid_after(begin + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise InputError(f"hosts: {host!r} must be a host name in ASCII or an IP address") from None


def _load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        raise InputError(f"{path}: must be a readable certificate in PEM") from None


def _load_authority(
    authority: Path, authority_key: Path
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate = _load_certificate(authority)
    try:
        key = serialization.load_pem_private_key(authority_key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError):
        raise InputError(f"{authority_key}: must be a readable, unencrypted key in PEM") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"{authority_key}: must be an elliptic-curve key")
    if key.public_key() != certificate.public_key():
        raise InputError(f"{authority_key}: is not the key of {authority}")
    return certificate, key


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _to_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
