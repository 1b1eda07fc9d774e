import tomllib
from pathlib import Path

import pytest

from pacdp.errors import InputError
from pacdp.flower import bundle, commands

ENVIRONMENT, HOME = Path("/opt/flower"), Path("/srv/home")


def supernode(**settings):
    defaults = {
        "home": HOME,
        "authority": Path("ca.crt"),
        "key": Path("node.key"),
        "address": "link.example.org:9092",
        "site": "north",
        "socket": Path("/srv/my sites/north.sock"),
    }
    return commands.supernode_command(ENVIRONMENT, **(defaults | settings))


def test_no_command_speaks_plain_http_to_the_superlink():
    secret = Path("secret")
    superlink = commands.superlink_command(
        ENVIRONMENT,
        home=HOME,
        authority=Path("ca.crt"),
        certificate=Path("server.crt"),
        key=Path("server.key"),
        database=Path("state.db"),
        secret=secret,
    )
    superexec = commands.server_superexec_command(
        ENVIRONMENT, home=HOME, authority=Path("ca.crt"), secret=secret, address="localhost:9092"
    )
    for command in (superlink, superexec, supernode(), supernode(secret=secret)):
        assert "--insecure" not in command.arguments
    for option in ("--enable-supernode-auth", "--disable-runtime-dependency-installation"):
        assert option in superlink.arguments


def test_a_command_is_found_and_finds_the_programs_of_its_environment_only():
    command = supernode()
    assert command.arguments[0] == "/opt/flower/bin/flower-supernode"
    assert command.variables["PATH"].startswith("/opt/flower/bin:")
    assert command.variables["PYTHONPATH"] == ""
    assert command.variables["FLWR_HOME"] == "/srv/home"
    assert command.variables["FLWR_TELEMETRY_ENABLED"] == "0"


def test_a_node_is_told_its_site_and_socket():
    assert "site='north' socket='/srv/my sites/north.sock'" in supernode().arguments


@pytest.mark.parametrize("site", ["nor'th", "north\nsouth"])
def test_a_name_that_flower_would_misread_is_refused(site):
    with pytest.raises(InputError, match="must not contain quotes or control characters"):
        supernode(site=site)


def test_the_app_is_started_by_another_process_if_there_is_a_secret():
    arguments = " ".join(supernode(secret=Path("secret")).arguments)
    assert "--isolation process --superexec-auth-secret-file secret" in arguments
    assert "--isolation subprocess" in " ".join(supernode().arguments)


def test_the_settings_of_the_connection_can_be_read(tmp_path):
    authority = tmp_path / 'a "b" ü' / "ca.crt"
    commands.write_home(tmp_path / "home", authority=authority, address="localhost:9092")
    connection = tomllib.loads((tmp_path / "home" / "config.toml").read_text())["superlink"]
    assert connection["default"] == "federation"
    assert connection["federation"] == {
        "address": "localhost:9092",
        "root-certificates": str(authority),
    }


def test_the_app_needs_flower_and_the_standard_library_only(tmp_path):
    bundle.write_app(tmp_path / "app")
    files = sorted(path for path in (tmp_path / "app").rglob("*") if path.is_file())
    assert [path.name for path in files if path.suffix == ".py"] == [
        "__init__.py",
        "client_app.py",
        "relay.py",
        "server_app.py",
    ]
    settings = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert settings["project"]["dependencies"] == ["flwr>=1.41,<1.42"]
    for path in files:
        assert "import pacdp\n" not in path.read_text()
        assert "torch" not in path.read_text()
    with pytest.raises(InputError, match="exists already"):
        bundle.write_app(tmp_path / "app")
