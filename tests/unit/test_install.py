"""scripts/install.py: pip's configuration is uv's too."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

install = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "scripts/install.py")))

LISTED = r"""
:env:.find-links='/wheels'
:env:.no-input='1'
global.cert='/etc/ca.crt'
global.extra-index-url='file:///one/simple\nfile:///two/simple'
global.find-links='/older'
install.index-url='https://mirror/simple'
list.format='columns'
"""


def test_indexes_and_links_of_pip_are_handed_on():
    config = install.read_config(LISTED)
    assert install.uv_options(config) == [
        *("--default-index", "https://mirror/simple"),
        *("--index", "file:///one/simple", "--index", "file:///two/simple"),
        *("--find-links", "/wheels"),
        *("--index-strategy", "unsafe-best-match"),
    ]


def test_a_certificate_of_pip_is_handed_on_unless_the_environment_names_one(monkeypatch):
    config = install.read_config(LISTED)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert install.uv_environment(config)["SSL_CERT_FILE"] == "/etc/ca.crt"
    monkeypatch.setenv("SSL_CERT_FILE", "/my.crt")
    assert install.uv_environment(config)["SSL_CERT_FILE"] == "/my.crt"


def test_a_pip_without_configuration_changes_nothing():
    assert install.uv_options(install.read_config("")) == []
