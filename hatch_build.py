"""Compile the loops in `src/fedpower/native` as fedpower is built or installed, or go on without it.

``python hatch_build.py`` does it in place, for who changed one.
"""

import hashlib
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # run by hand, where only the compiler is needed
    BuildHookInterface = object

FOLDER = Path("src/fedpower/native")
FLAGS = (
    *(
        "-O3",
        "-std=gnu99",
        "-Wall",
        "-Wextra",
        "-Werror=implicit-function-declaration",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
    ),
    # Sums may use fused multiply-add; nothing is lost without errno and traps.
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
)


def _digest(folder: Path) -> str:
    """Return what the library says that is built from a folder, as `fedpower.native` does."""
    found = hashlib.sha256()
    for each in sorted([*folder.glob("*.c"), *folder.glob("*.h")], key=lambda path: path.name):
        found.update(each.read_bytes())
    return found.hexdigest()


def compile_loops(root: Path) -> Path | None:
    """Return the library, compiled into the package's folder, or None where that cannot be done."""
    built = root / FOLDER / "loops.bin"
    sources = sorted(str(each) for each in built.parent.glob("*.c"))
    compiler = shlex.split(os.environ.get("CC") or "cc")
    digest = _digest(built.parent)
    for old in built.parent.glob("*.so"):
        old.unlink()
    with tempfile.TemporaryDirectory(dir=built.parent, prefix=".build-") as folder:
        made = Path(folder) / built.name
        command = [*compiler, *FLAGS, f'-DSOURCE_DIGEST="{digest}"', "-o", str(made), *sources]
        try:
            done = subprocess.run([*command, "-lm"], capture_output=True, text=True, check=False)  # noqa: S603
            reason = (done.stderr.strip() or "the compiler failed") if done.returncode else ""
        except OSError as error:
            reason = str(error)
        if reason:
            built.unlink(missing_ok=True)
            print(
                f"fedpower: the loops in C were not compiled, NumPy is used in their place "
                f"({reason.splitlines()[0]}); install a C compiler and install again to have them",
                file=sys.stderr,
            )
            return None
        made.replace(built)  # in one step: a process that has loaded the old one keeps it
    return built


class CompiledLoops(BuildHookInterface):
    """Puts the compiled loops into a wheel, which is then one for this kind of machine."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, in place for an editable installation too."""
        built = compile_loops(Path(self.root))
        if built is None or version == "editable":
            return
        build_data["force_include"][str(built)] = f"fedpower/native/{built.name}"
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"


if __name__ == "__main__":
    sys.exit(compile_loops(Path(__file__).parent) is None)
