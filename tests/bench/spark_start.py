"""The start of a session up to its first row, part by part: `… STORE true|false`, for class data.

A process of its own, whose last line is {"s": [seconds of each part], "cpu_s": of all processes}.
"""

import json
import os
import sys
from itertools import pairwise
from tempfile import TemporaryDirectory
from time import monotonic

from tests.bench.process_figures import tree_cpu_seconds
from troupemq.java import find_java

PARTS = ("import", "session", "first job", "first Python worker")


def main(store: str, class_data: str) -> None:
    os.environ["JAVA_HOME"] = find_java(os.environ)
    moments = [monotonic()]
    # Here, for it is the first part.
    from spark.class_data import SETTING
    from spark.session import start_session
    from troupemq.datasource import TroupeMQ

    moments.append(monotonic())
    with TemporaryDirectory() as scratch:
        spark = start_session({"spark.master": "local[2]", SETTING: class_data}, scratch)
        moments.append(monotonic())
        spark.range(1000).selectExpr("sum(id)").collect()
        moments.append(monotonic())
        spark.dataSource.register(TroupeMQ)
        row = spark.read.format(TroupeMQ.name()).schema("topic string").load(store).first()
        moments.append(monotonic())
        assert row is not None
        used = tree_cpu_seconds(os.getpid())
        spark.stop()
    parts = [end - start for start, end in pairwise(moments)]
    print(json.dumps({"s": parts, "cpu_s": used}))


if __name__ == "__main__":
    main(*sys.argv[1:])
