"""The page about sites names every setting and every code."""

import re
import tomllib
from pathlib import Path

from pacdp.federation.wire import Code
from pacdp.site import SiteSettings

PAGE = (Path(__file__).parents[2] / "docs" / "site.md").read_text()


def test_the_page_names_every_setting():
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    without_comments = re.sub(r"^# (\w+ = )", r"\1", example, flags=re.MULTILINE)
    # accept writes its own.
    assert set(tomllib.loads(without_comments)) == set(SiteSettings.model_fields) - {"accepted"}


def test_the_page_names_every_code():
    table = "".join(line for line in PAGE.splitlines() if line.startswith("| `"))
    assert {code for code in Code if f"`{code}`" in table} == set(Code)
