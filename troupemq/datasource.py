"""PySpark data source, for import as `from troupemq.datasource import TroupeMQ`.

    spark.dataSource.register(TroupeMQ)
    messages = spark.read.format("troupemq").option("store", "/path/of/store").load()
    messages = spark.read.format("troupemq").option("nameServer", "host:9876").load()

`behind(query.lastProgress)` returns the lag of a stream, in messages per queue.
`read_archive(spark, path)` returns an archive as a DataFrame, `archive_files(path)` its files.
`ship_code(spark)` sends the code of the tasks to cluster workers that do not have it.

Needs the extra `spark`. docs/pipeline.md lists columns and options.
"""

from spark.archive.frame import archive_files, read_archive
from spark.shipping import ship_code
from spark.source.data_source import TroupeMQ
from spark.source.stream import behind

__all__ = ["TroupeMQ", "archive_files", "behind", "read_archive", "ship_code"]
