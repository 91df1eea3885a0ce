"""Certificates for tests: of a private authority, of a server at `localhost`, and of an unknown authority."""

import shutil
import subprocess
from pathlib import Path

from .debian import Package, with_libraries

PACKAGE = Package("openssl", ("openssl",), ("bin/openssl",))
_DAYS = "2"
# An elliptic-curve key is generated quickly, and every server here accepts it.
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
# Instead of the system's configuration, which may be missing or different.
_SETTINGS = """[req]
distinguished_name = name
x509_extensions = authority
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
"""
_OF_A_CERTIFICATE = """basicConstraints = CA:FALSE
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


class Certificates:
    """Certificates in a directory. The server's is only for the name `localhost`, not for 127.0.0.1."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "settings").write_text(_SETTINGS)
        self.authority = self._authority("authority")
        self.stranger = self._authority("stranger")
        self.certificate, self.key = self._signed("server", "subjectAltName=DNS:localhost")
        self.clients_certificate, self.clients_key = self._signed("client", "extendedKeyUsage=clientAuth")

    def _authority(self, name: str) -> Path:
        """A self-signed certificate."""
        made = self._directory / f"{name}.pem"
        self._openssl("req", "-x509", *_KEY, *self._named(name), "-days", _DAYS, "-out", str(made))
        return made

    def _signed(self, name: str, extension: str) -> tuple[Path, Path]:
        """A certificate signed by the authority, and its key."""
        made, asked = self._directory / f"{name}.pem", self._directory / f"{name}.csr"
        self._openssl("req", *_KEY, *self._named(name), "-out", str(asked))
        extensions = self._directory / f"{name}.ext"
        extensions.write_text(f"{_OF_A_CERTIFICATE}{extension}\n")
        signer = ["-CA", str(self.authority), "-CAkey", str(self.authority.with_suffix(".key")), "-CAcreateserial"]
        options = ["-days", _DAYS, "-extfile", str(extensions), "-out", str(made)]
        self._openssl("x509", "-req", "-in", str(asked), *signer, *options)
        return made, made.with_suffix(".key")

    def _named(self, name: str) -> list[str]:
        key = self._directory / f"{name}.key"
        return ["-config", "settings", "-subj", f"/CN=Holdfast's tests: {name}", "-keyout", str(key)]

    def _openssl(self, *words: str) -> None:
        tool = Path(shutil.which("openssl") or PACKAGE.home() / "bin/openssl")
        command = with_libraries(tool.parents[1], [str(tool), *words])
        done = subprocess.run(command, cwd=self._directory, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"openssl {words[0]} failed:\n{done.stderr}")
        for key in self._directory.glob("*.key"):
            key.chmod(0o600)
