"""Runs a module as a program that ends with the run that started it, also when that is killed.

python -m chaos.child roquet broker -c broker.conf
"""

from __future__ import annotations

import os
import runpy
import sys

from chaos.namespaces import die_with_parent


def main() -> None:
    parent = int(os.environ["CHAOS_PARENT"])
    die_with_parent()
    if os.getppid() != parent:
        sys.exit("chaos: the run that started this program has ended already")
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
