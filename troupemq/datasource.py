"""The PySpark data source: `from troupemq.datasource import TroupeMQ`, then register it.

    spark.dataSource.register(TroupeMQ)
    messages = spark.read.format("troupemq").option("store", "/path/of/store").load()

It needs the extra `spark`: pip install "troupemq[spark]". docs/pipeline.md has columns and options.
"""

from spark.source import TroupeMQ

__all__ = ["TroupeMQ"]
