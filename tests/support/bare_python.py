"""A Python with numpy and pyarrow and nothing else: what a worker of Spark is promised to do with.

The two packages are lent by this environment, link by link, so that making it takes no second and
no network. Spark's own half of Python, which it puts on the path of its workers, lies beside it.
"""

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

PACKAGES = ("numpy", "pyarrow")
SPARK_BRINGS = ("pyspark", "py4j")


def bare_python(directory: Path) -> Path:
    """Makes the environment in a new directory; returns its interpreter."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True, timeout=60
    )
    (target,) = directory.glob("lib/python*/site-packages")
    for package in PACKAGES:
        lend(package, target)
    brought = spark_path(directory / "bin" / "python")
    brought.mkdir()
    for package in SPARK_BRINGS:
        lend(package, brought)
    return directory / "bin" / "python"


def lend(package: str, target: Path) -> None:
    """Links all that a distribution has at its top."""
    lent = distribution(package)
    for name in {file.parts[0] for file in lent.files or ()} - {".."}:
        (target / name).symlink_to(Path(str(lent.locate_file(name))))


def spark_path(python: Path) -> Path:
    """Return the path that Spark itself sets for a worker."""
    return python.parents[1] / "spark"
