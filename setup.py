"""The optional extension (roquet/speedups). Everything else is in pyproject.toml, which setuptools reads beside this file.

Where it cannot be compiled (no compiler, no headers of Python, a big-endian machine) the build warns and goes on without: `optional`.
"""

import hashlib
import os
import sys
from pathlib import Path

from setuptools import Extension, setup

HERE = Path(__file__).parent
SOURCES = HERE / "src" / "roquet" / "speedups"
FLAGS = ["-O3", "-flto", "-fvisibility=hidden", "-std=gnu11", "-Wall", "-Wextra"]
SANITIZERS = ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
sanitize = os.environ.get("ROQUET_SANITIZE") == "1"  # `make sanitize`
digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted((*SOURCES.glob("*.c"), *SOURCES.glob("*.h"))))).hexdigest()[:16]

setup(
    ext_modules=[
        Extension(
            "roquet.speedups._native",
            sorted(str(path.relative_to(HERE)) for path in SOURCES.glob("*.c")),
            depends=[str(path.relative_to(HERE)) for path in SOURCES.glob("*.h")],
            define_macros=[("SOURCES", f'"{digest}"')],
            extra_compile_args=[*FLAGS, *(SANITIZERS if sanitize else [])],
            extra_link_args=["-fsanitize=address,undefined"] if sanitize else [],
            optional=True,
        )
    ]
    if sys.byteorder == "little"
    else []
)
