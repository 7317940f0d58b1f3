"""The PySpark data source: `from troupemq.datasource import TroupeMQ`, then register it.

    spark.dataSource.register(TroupeMQ)
    messages = spark.read.format("troupemq").option("store", "/path/of/store").load()
    messages = spark.read.format("troupemq").option("nameServer", "host:9876").load()

`behind(query.lastProgress)` tells how many messages of each queue a stream has yet to read.

It needs the extra `spark`: pip install "troupemq[spark]". docs/pipeline.md has columns and options.
"""

from spark.source import TroupeMQ
from spark.stream import behind

__all__ = ["TroupeMQ", "behind"]
