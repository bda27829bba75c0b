"""What is shipped: one version in two places, and the marker of typed packages."""

import re
from importlib import resources
from pathlib import Path

import pytest

from lightning_sink.__about__ import __version__

ROOT = Path(__file__).parents[1]
CHANGELOG = ROOT / "CHANGELOG.md"


def versions_agree(version: str, changelog: str) -> bool:
    """Whether the top entry is the version's, or, while it is developed, the one for what is unreleased."""
    entry = re.search(r"^## \[?([^\]\s]+)", changelog, re.MULTILINE)
    return entry is not None and entry[1] == ("Unreleased" if ".dev" in version else version)


def test_version_is_the_top_entry_of_the_changelog():
    assert versions_agree(__version__, CHANGELOG.read_text())


@pytest.mark.parametrize(("version", "changelog", "agree"), [
    ("0.1.0.dev0", "# Changelog\n\n## [Unreleased]\n\n## [0.0.9] - 2025-01-01\n", True),
    ("0.1.0", "# Changelog\n\n## [0.1.0] - 2025-01-01\n\n## [0.0.9] - 2024-01-01\n", True),
    ("0.1.0", "# Changelog\n\n## 0.1.0\n", True),
    ("0.1.0.dev0", "# Changelog\n\n## [0.1.0] - 2025-01-01\n", False),
    ("0.1.0", "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2025-01-01\n", False),
    ("0.1.0", "# Changelog\n\n## [0.0.9] - 2024-01-01\n\n## [0.1.0] - 2025-01-01\n", False),
    ("0.1.0", "# Changelog\n", False),
])  # fmt: skip
def test_control_versions_that_disagree_are_caught(version, changelog, agree):
    assert versions_agree(version, changelog) is agree


def test_package_is_marked_as_typed():
    assert resources.files("lightning_sink").joinpath("py.typed").is_file()


def test_numpy_is_one_whose_global_generator_can_be_replaced():
    text = (ROOT / "pyproject.toml").read_text()
    dependencies = re.search(r"^dependencies = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert dependencies is not None
    assert '"numpy>=1.24"' in dependencies[1]
