"""Certificates for the tests of TLS, made with the openssl program."""

import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = {"server": "IP:127.0.0.1,IP:::1,DNS:localhost", "elsewhere": "DNS:elsewhere.example", "client": "DNS:client"}


def make(folder: Path) -> Path:
    """`ca.pem`, which signed NAME.pem for NAME.key of each name, and `other.pem`, which signed nothing."""
    if not shutil.which("openssl"):
        pytest.skip("there is no openssl program to make certificates with")
    key = ("-newkey", "rsa:2048", "-nodes", "-keyout")
    for name in ("ca", "other"):
        _run(folder, "req", "-x509", "-days", "2", *key, f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
    for name, names in NAMES.items():
        (folder / f"{name}.ext").write_text(f"subjectAltName={names}\n")
        _run(folder, "req", *key, f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext")
        _run(folder, "x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")
    return folder


def _run(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
