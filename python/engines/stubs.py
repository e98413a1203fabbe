"""Makes PyPI's torch load without the 2 GB of NVIDIA's libraries that it is linked to.

    stubs.py          of the environment that runs it

PyPI has no other torch for Linux. Each library that is missing is made here, with a function for
every symbol that torch wants from it. The functions abort: nothing on a CPU calls them, and
`torch.cuda.is_available()` is false. Needs cc, nm, readelf and ldconfig.
"""

from __future__ import annotations

import re
import subprocess
import sysconfig
import tempfile
from collections import defaultdict
from pathlib import Path

# What begins like this and is nowhere defined belongs to one of the missing libraries.
CUDA = re.compile(r"^(cu|nccl|nv|_?_?cuda?|pncc)", re.I)


def output(*command: str | Path) -> str:
    """What a program prints."""
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def symbols(libraries: list[Path]) -> dict[str, str]:
    """The symbols that no library defines, with the version that is asked for, or ""."""
    wanted: dict[str, str] = {}
    defined = set()
    for library in libraries:
        for line in output("nm", "-D", library).splitlines():
            kind, symbol = line.split()[-2:]
            name, _, version = symbol.partition("@")
            if kind in "Uw":
                wanted.setdefault(name, version.lstrip("@"))
            else:
                defined.add(name)
    return {name: version for name, version in wanted.items() if name not in defined}


def missing(libraries: list[Path], site: Path) -> list[str]:
    """The names of the libraries that these need and that are neither here nor the system's."""
    needed = set()
    for library in libraries:
        needed |= set(re.findall(r"NEEDED.*\[(.*?)\]", output("readelf", "-dW", library)))
    here = {file.name for file in [*libraries, *site.glob("nvidia/*/lib/*.so*")]}
    system = set(re.findall(r"^\t(\S+) \(", output("/sbin/ldconfig", "-p"), re.M))
    return sorted(name for name in needed - here - system if not name.startswith("ld-linux"))


def stub(file: Path, wanted: dict[str, str]) -> None:
    """Makes a library of functions that abort."""
    functions = [f"void {name}(void) {{ abort(); }}" for name in sorted(wanted)]
    versioned = [name for name, version in wanted.items() if version]
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder, "stub.c"), Path(folder, "stub.map")
        source.write_text("\n".join(["extern void abort(void);", *functions]) + "\n")
        script.write_text(
            f"{file.name} {{ global: {' '.join(f'{name};' for name in versioned)} }};"
        )
        scripted = [f"-Wl,--version-script,{script}"] if versioned else []
        flags = ["-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{file.name}", *scripted]
        output("cc", *flags, source, "-o", file)


def main(site: Path) -> None:
    """Makes all of them, where torch looks for NVIDIA's."""
    torch = [*site.glob("torch/lib/*.so*"), *site.glob("torch/_C*.so")]
    absent = missing(torch, site)
    by_library: dict[str, dict[str, str]] = defaultdict(dict)
    for name, version in symbols(torch).items():
        if version in absent:
            by_library[version][name] = version
        elif CUDA.match(name):
            # Without a version any library will do.
            by_library[absent[0]][name] = ""
    folder = site / "nvidia/cu13/lib"
    folder.mkdir(parents=True, exist_ok=True)
    for name in absent:
        stub(folder / name, by_library[name])
    print(f"{len(absent)} libraries of {sum(map(len, by_library.values()))} functions")


if __name__ == "__main__":
    main(Path(sysconfig.get_path("purelib")))
