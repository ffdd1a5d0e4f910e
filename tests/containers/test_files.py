"""What is shipped as containers, as far as it can be checked without an engine.

The build's own commands run here in order, in an empty directory, with the files that the build is
given; what comes out is started as the image would start it.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from sqlalchemy import make_url

from app.server import KEEP_ALIVE
from app.settings import Settings
from app.storage import embedded

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
BIN = Path(sys.executable).parent


def output_of(
    *command: object, cwd: Path | str = ROOT, env: Mapping[str, str] | None = None
) -> str:
    done = subprocess.run(  # noqa: S603 - our own files
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_dockerfile_is_clean() -> None:
    output_of(BIN / "hadolint", "Dockerfile")


def test_the_kubernetes_manifest_is_valid() -> None:
    output_of(BIN / "kubernetes-validate", "--strict", "deploy/kubernetes.yaml")


def compose(**environment: str) -> dict[str, Any]:
    (program,) = BIN.parent.glob("lib/python*/site-packages/compose/docker-compose")
    shown = output_of(
        *(program, "-f", "docker-compose.yml", "config", "--format", "json"),
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environment},
    )
    return json.loads(shown)


def test_the_compose_file_is_valid_and_open_to_this_machine_only() -> None:
    services = compose(POSTGRES_PASSWORD="x")["services"]
    database = services["database"]

    host = make_url(services["service"]["environment"]["DATABASE_URL"]).host
    assert services[host or ""] is database
    assert database["healthcheck"]["test"][:4] == ["CMD", "pg_isready", "--host", "127.0.0.1"]
    assert [name for name, service in services.items() if "build" in service] == ["migrate"]
    Settings.model_validate(lowered(services["service"]["environment"]))
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert [port["host_ip"] for port in ports] == ["127.0.0.1"]
    assert services["service"]["environment"]["CHAT_AUTH"] == "keys"
    assert services["service"]["depends_on"]["migrate"]["condition"] == (
        "service_completed_successfully"
    )
    assert services["migrate"]["command"] == ["migrate"]
    grace = int(services["service"]["environment"]["CHAT_SHUTDOWN_GRACE"])
    assert services["service"]["stop_grace_period"] == f"{grace + 15}s"


def test_the_proxy_leads_to_the_replicas_and_outlives_them() -> None:
    services = compose(POSTGRES_PASSWORD="x")["services"]
    service, proxy = services["service"], services["proxy"]
    configuration = (ROOT / "deploy" / "nginx.conf").read_text()
    (volume,) = proxy["volumes"]

    assert volume["source"] == str(ROOT / "deploy" / "nginx.conf")
    assert (volume["target"], volume["read_only"]) == ("/etc/nginx/nginx.conf", True)
    assert f"server service:{_final_environment()['CHAT_PORT']} " in configuration
    assert f"listen {proxy['ports'][0]['target']} " in configuration
    assert service["deploy"]["replicas"] == 2
    assert "ports" not in service
    # It is stopped together with them, and closes when the last stream has ended.
    assert not proxy.get("depends_on")
    assert proxy["stop_signal"] == "SIGQUIT"
    assert seconds(proxy["stop_grace_period"]) > seconds(service["stop_grace_period"])


def test_nginx_lets_go_of_an_idle_connection_before_the_service_does() -> None:
    configuration = (ROOT / "deploy" / "nginx.conf").read_text()
    upstream = configuration.partition("upstream chat_workflow {")[2].partition("\n    }")[0]
    (kept,) = re.findall(r"keepalive_timeout (\d+s);", upstream)

    assert seconds(kept) < KEEP_ALIVE


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))


def test_a_compose_without_a_password_says_what_to_do() -> None:
    with pytest.raises(AssertionError, match="put one into"):
        compose()


def test_the_readme_s_commands_fit_the_compose_file(tmp_path: Path) -> None:
    blocks = re.findall(
        r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    (block,) = [text for text in blocks if text.startswith("grep -qs POSTGRES_PASSWORD")]
    password, up, create = block.splitlines()
    output_of("sh", "-c", f"{password}\n{password}", cwd=tmp_path)
    name, _, value = (tmp_path / ".env").read_text().strip().partition("=")

    services = compose(**{name: value})["services"]

    assert value in services["service"]["environment"]["DATABASE_URL"]
    assert up == "docker compose up --build --detach"
    _, _, _, service, *command = create.split()
    assert service in services
    assert command == ["chat-workflow", "keys", "create", "--user", "ada"]


def test_the_pods_are_given_the_time_that_the_service_takes() -> None:
    documents = yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text())
    (deployment,) = [each for each in documents if each["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    settings = {each["name"]: each["value"] for each in container["env"]}
    before = int(container["lifecycle"]["preStop"]["exec"]["command"][1])

    needed = before + int(settings["CHAT_SHUTDOWN_GRACE"]) + 10
    assert pod["terminationGracePeriodSeconds"] >= needed


def lowered(environment: Mapping[str, str | None]) -> dict[str, str]:
    """The settings among these variables, by their fields' names."""
    found = {name.lower(): value for name, value in environment.items() if value is not None}
    return {k: v for k, v in found.items() if k.startswith("chat_") or k == "database_url"}


def test_the_pods_are_configured_as_the_service_is() -> None:
    documents = list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text()))
    paths = json.loads((ROOT / "openapi" / "openapi.json").read_text())["paths"]
    pods = [each["spec"]["template"]["spec"] for each in documents if "template" in each["spec"]]
    (migration,), (service,) = (pod["containers"] for pod in pods)

    Settings.model_validate(lowered({each["name"]: each["value"] for each in service["env"]}))
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert service[probe]["httpGet"]["path"] in paths
    image = _final_environment()
    assert [port["containerPort"] for port in service["ports"]] == [int(image["CHAT_PORT"])]
    assert (migration["args"], service["args"]) == (["migrate"], ["serve"])
    assert all(pod["enableServiceLinks"] is False for pod in pods)
    assert all(pod["securityContext"]["runAsUser"] == 10001 for pod in pods)


@pytest.fixture(scope="module")
def image() -> Generator[Path]:
    """The files of the final stage, made by the commands of the first."""
    with tempfile.TemporaryDirectory(prefix="cw-image-") as name:
        root = Path(name)
        root.chmod(0o755)
        source, environment = root / "src", root / "venv"
        source.mkdir()
        python = root / "python"
        output_of(sys.executable, "-m", "venv", python)
        for instruction, arguments in _instructions(_stage(0)):
            if instruction == "COPY":
                *sources, target = arguments.split()
                for each in sources:
                    _copy(
                        ROOT / each,
                        source / target / (Path(each).name if target.endswith("/") else ""),
                    )
            elif instruction == "RUN":
                line = arguments.replace("/opt/venv", str(environment))
                path = f"{python / 'bin'}:/usr/bin:/bin"
                output_of("sh", "-ec", line, cwd=source, env={**os.environ, "PATH": path})  # noqa: TID251 - pip's own settings
        yield environment


def _stage(number: int) -> str:
    return re.split(r"^FROM .*\n", DOCKERFILE, flags=re.MULTILINE)[number + 1]


def _instructions(stage: str) -> list[tuple[str, str]]:
    lines = [line for line in stage.splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in joined.splitlines()]


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def _final_environment() -> Mapping[str, str]:
    (line,) = [rest for name, rest in _instructions(_stage(1)) if name == "ENV"]
    return dict(re.findall(r"(CHAT_\w+|PYTHON\w+)=(\S+)", line))


async def test_the_image_migrates_serves_is_healthy_and_stops_in_order(image: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="cw-image-data-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        postgres = await asyncio.to_thread(embedded.start, folder / "data")
        try:
            await _play(image, str(postgres.url))
        finally:
            await asyncio.to_thread(postgres.release)


async def _play(image: Path, database_url: str) -> None:
    settings = {**_final_environment(), "DATABASE_URL": database_url, "CHAT_PORT": "0"}
    assert settings["CHAT_HOST"] == "0.0.0.0"  # noqa: S104 - inside a container
    final = dict(_instructions(_stage(1)))
    (name,) = json.loads(final["ENTRYPOINT"])
    program = image / "bin" / name
    output_of(
        program,
        *compose(POSTGRES_PASSWORD="x")["services"]["migrate"]["command"],
        env=settings,
        cwd="/",
    )
    shown = output_of(program, "keys", "create", "--user", "ada", env=settings, cwd="/")
    serving = await asyncio.create_subprocess_exec(
        program, *json.loads(final["CMD"]), env=settings, stderr=asyncio.subprocess.PIPE, cwd="/"
    )
    assert serving.stderr is not None
    while "url" not in (line := json.loads(await serving.stderr.readline())):
        pass
    url = line["url"].replace("0.0.0.0", "127.0.0.1")  # noqa: S104 - see above
    headers = {"Authorization": f"Bearer {shown.split()[0]}"}
    async with httpx.AsyncClient(base_url=url, headers=headers) as client:
        assert (await client.get("/health/ready")).status_code == 200
        created = await client.post("/v1/conversations")
        path = f"{created.headers['location']}/messages"
        answer = await client.post(path, json={"content": "My name is Ada."})
        assert answer.json()["status"] == "completed"
    (check,) = [rest for name, rest in _instructions(_stage(1)) if name == "HEALTHCHECK"]
    command = json.loads(check.partition("CMD ")[2])
    port = url.rpartition(":")[2]
    output_of(image / "bin" / "python", *command[1:], env={"CHAT_PORT": port}, cwd="/")
    serving.terminate()
    assert await serving.wait() == 0


def test_nothing_that_installs_is_left_in_the_image(image: Path) -> None:
    assert not list((image / "bin").glob("pip*"))
    assert not list(image.glob("lib/python*/site-packages/pip"))
