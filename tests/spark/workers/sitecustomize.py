"""On the PYTHONPATH of every Python process that Spark starts in the tests: pyspark comes from where it is installed.

Spark puts its own zip of pyspark first. It holds no compiled code, so each process would compile all that it imports: half a second.
"""

import sys

sys.path[:] = [path for path in sys.path if not (path.endswith(".zip") and "pyspark" in path)]
