"""Ed25519 keys, with which the sites and the coordinator of a federation sign their messages.

Several public keys of one party are valid while its key is being replaced.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import BeforeValidator, Field

from pacdp.errors import InputError
from pacdp.validation import require_private_file

PublicKeys = Annotated[
    tuple[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    Field(min_length=1),
]
"""The type of a setting that holds one public key in hexadecimal digits, or several."""
Sign = Callable[[bytes], bytes]
"""Returns the signature of a message."""
Verify = Callable[[bytes, bytes], bool]
"""Whether a signature (the first argument) is that of a message (the second)."""
_ALLOWED = "must be an unencrypted Ed25519 private key in PEM, as written by pacdp site key"


def create_key(path: Path) -> str:
    """Write a new private key, readable only by its owner, and return its public key.

    >>> import tempfile
    >>> len(create_key(Path(tempfile.mkdtemp()) / "site.key"))
    64
    """
    key = Ed25519PrivateKey.generate()
    content = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_private_file(path, content)
    return key.public_key().public_bytes_raw().hex()


def write_private_file(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read, and return once it is on disk."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        raise InputError(f"{path}: exists already; a key is never overwritten") from None
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def load_signer(path: Path) -> Sign:
    """Read a private key, whose file must have mode 600, and return its signing function."""
    return _load_private_key(path).sign


def read_public_key(path: Path) -> str:
    """Read a private key, and return its public key in hexadecimal digits."""
    return _load_private_key(path).public_key().public_bytes_raw().hex()


def make_verifier(public: Sequence[str], *, where: str = "coordinator") -> Verify:
    """Return a function that accepts signatures by any of these keys, in hexadecimal digits.

    >>> make_verifier(["00"], where="sites.north")
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: sites.north: must be a public key of 64 hexadecimal digits
    """
    assert not isinstance(public, str), "a sequence of keys is required"
    try:
        keys = [Ed25519PublicKey.from_public_bytes(bytes.fromhex(digits)) for digits in public]
    except ValueError:
        raise InputError(f"{where}: must be a public key of 64 hexadecimal digits") from None
    return lambda signature, message: any(_is_valid(key, signature, message) for key in keys)


def _is_valid(key: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True


def _load_private_key(path: Path) -> Ed25519PrivateKey:
    try:
        content = require_private_file(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(f"{path}: {_ALLOWED}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"{path}: {_ALLOWED}")
    return key
