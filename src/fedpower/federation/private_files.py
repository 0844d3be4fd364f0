"""Files of mode 0600 in folders of mode 0700, whatever the umask: keys, journals, what a kit holds."""

import os
from pathlib import Path


def private_folder(folder: Path) -> Path:
    """Return the folder, which nobody else may enter; it and what is above it are made where missing."""
    if not folder.parent.exists():
        private_folder(folder.parent)
    folder.mkdir(exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    return folder


def open_private(path: Path, flags: int) -> int:
    """Return a descriptor of a file that nobody else may read, made where ``flags`` say so."""
    handle = os.open(path, flags, 0o600)
    os.fchmod(handle, 0o600)  # one that was there before, and whatever the umask took away
    return handle


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file that nobody else may read; it is there whole or not at all."""
    made = path.with_name(f".{path.name}.new")
    made.unlink(missing_ok=True)
    with os.fdopen(open_private(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    made.replace(path)
