from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from pacdp.errors import InputError
from pacdp.flower.certificates import (
    create_authority,
    create_node_key,
    create_secret,
    issue_server_certificate,
    read_expiry,
)


@pytest.fixture
def authority(tmp_path):
    certificate, key = tmp_path / "ca.crt", tmp_path / "ca.key"
    create_authority(certificate, key)
    return {"authority": certificate, "authority_key": key}


def verify(authority, certificate, subject):
    store = Store([x509.load_pem_x509_certificate(authority.read_bytes())])
    subject = x509.IPAddress(ip_address(subject)) if subject[0].isdigit() else x509.DNSName(subject)
    verifier = PolicyBuilder().store(store).build_server_verifier(subject)
    return verifier.verify(x509.load_pem_x509_certificate(certificate.read_bytes()), [])


def test_a_certificate_is_valid_for_its_hosts_only(tmp_path, authority):
    certificate = tmp_path / "server.crt"
    hosts = ["link.example.org", "10.0.0.7", "localhost"]
    issue_server_certificate(certificate, tmp_path / "server.key", **authority, hosts=hosts)
    for host in ("localhost", "127.0.0.1", "link.example.org", "10.0.0.7"):
        assert verify(authority["authority"], certificate, host)
    for host in ("example.org", "10.0.0.8"):
        with pytest.raises(VerificationError):
            verify(authority["authority"], certificate, host)


def test_a_certificate_of_another_authority_or_of_last_year_is_not_valid(tmp_path, authority):
    create_authority(tmp_path / "other.crt", tmp_path / "other.key")
    issue_server_certificate(tmp_path / "a.crt", tmp_path / "a.key", **authority)
    with pytest.raises(VerificationError):
        verify(tmp_path / "other.crt", tmp_path / "a.crt", "localhost")
    last_year = datetime.now(UTC) - timedelta(days=365)
    issue_server_certificate(
        tmp_path / "b.crt", tmp_path / "b.key", **authority, days=30, start=last_year
    )
    with pytest.raises(VerificationError):
        verify(authority["authority"], tmp_path / "b.crt", "localhost")
    assert read_expiry(tmp_path / "b.crt") < datetime.now(UTC)


def test_private_files_are_private_and_never_overwritten(tmp_path, authority):
    node, secret, server = tmp_path / "node.key", tmp_path / "secret", tmp_path / "server.key"
    create_node_key(node)
    create_secret(secret)
    issue_server_certificate(tmp_path / "server.crt", server, **authority)
    for path in (authority["authority_key"], node, secret, server):
        assert path.stat().st_mode & 0o777 == 0o600
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for attempt in (
        lambda: create_node_key(node),
        lambda: create_secret(secret),
        lambda: create_authority(*authority.values()),
        lambda: issue_server_certificate(tmp_path / "server.crt", tmp_path / "new", **authority),
        lambda: issue_server_certificate(tmp_path / "new", server, **authority),
    ):
        with pytest.raises(InputError, match="exists already"):
            attempt()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_node_key_is_a_pair_on_p384(tmp_path):
    public = create_node_key(tmp_path / "node.key")
    assert public == tmp_path / "node.key.pub"
    private = load_ssh_private_key((tmp_path / "node.key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp384r1"
    assert load_ssh_public_key(public.read_bytes()) == private.public_key()


def test_what_is_wrong_is_said_in_one_line(tmp_path, authority):
    files = (tmp_path / "x.crt", tmp_path / "x.key")
    create_authority(tmp_path / "other.crt", tmp_path / "other.key")
    for settings, message in [
        ({"hosts": ["häfen.example"]}, "hosts: 'häfen.example' must be a host name"),
        ({"days": 0}, "days: must be at least 1"),
        ({"authority": tmp_path / "none"}, "none: must be a readable certificate"),
        ({"authority_key": tmp_path / "none"}, "none: must be a readable, unencrypted key"),
        ({"authority_key": tmp_path / "other.key"}, "other.key: is not the key of"),
    ]:
        with pytest.raises(InputError, match=message):
            issue_server_certificate(*files, **(authority | settings))
        assert not any(path.exists() for path in files)
