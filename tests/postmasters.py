"""The processes of embedded servers, as the system shows them."""

from pathlib import Path

import psutil


def postmasters(directory: Path) -> list[psutil.Process]:
    """Living servers whose data lie in this directory, with all their children."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if process.name() == "postgres" and str(directory) in process.cwd():
                found.append(process)
        except psutil.Error:
            continue
    return found
