"""The processes of embedded servers, as the system shows them."""

import signal
from contextlib import suppress
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


def send_to_postmasters(directory: Path, number: signal.Signals) -> None:
    """A signal to each of them; one that ends in this moment has no need of it."""
    for process in postmasters(directory):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
