"""The PySpark data source: `from troupemq.datasource import TroupeMQ`, then register it.

    spark.dataSource.register(TroupeMQ)
    messages = spark.read.format("troupemq").option("store", "/path/of/store").load()
    messages = spark.read.format("troupemq").option("nameServer", "host:9876").load()

`behind(query.lastProgress)` tells how many messages of each queue a stream has yet to read.

`read_archive(spark, path)` is an archive as a DataFrame, `archive_files(path)` its files.

`ship_code(spark)` gives the code of the tasks to a cluster whose workers do not have it.

It needs the extra `spark` of the wheel. docs/pipeline.md has columns and options.
"""

from spark.archive.frame import archive_files, read_archive
from spark.shipping import ship_code
from spark.source.data_source import TroupeMQ
from spark.source.stream import behind

__all__ = ["TroupeMQ", "archive_files", "behind", "read_archive", "ship_code"]
