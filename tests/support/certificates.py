"""A certificate authority of a test's own: server certificates, and client certificates that name a user."""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = timedelta(days=2)


class Authority:
    """Signs what it is asked to; its files are in `folder`: ca.crt, and NAME.crt with NAME.key for each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name("codeexec tests")
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        made = _certificate(self._subject, self._subject, self._key.public_key())
        made = made.add_extension(constraints, critical=True).add_extension(usage, critical=True)
        self.certificate = made.sign(self._key, hashes.SHA256())
        (folder / "ca.crt").write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, file: str, user: str, groups: Sequence[str] = (), addresses: Sequence[str] = (), names: Sequence[str] = ()
    ) -> tuple[Path, Path]:
        """Certificate and key: of a server if it has addresses or names, of a client otherwise."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = _certificate(_name(user, groups), self._subject, key.public_key())
        found: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(one)) for one in addresses]
        found += [x509.DNSName(one) for one in names]
        if found:
            made = made.add_extension(x509.SubjectAlternativeName(found), critical=False)
        use = ExtendedKeyUsageOID.SERVER_AUTH if found else ExtendedKeyUsageOID.CLIENT_AUTH
        made = made.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        signed = made.add_extension(authority, critical=False).sign(self._key, hashes.SHA256())
        paths = self.folder / f"{file}.crt", self.folder / f"{file}.key"
        paths[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        write_key(paths[1], key)
        return paths


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def _name(user: str, groups: Sequence[str] = ()) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
    return x509.Name([*(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups), *parts])


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    made = made.serial_number(x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + _LIFETIME)
    return made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
