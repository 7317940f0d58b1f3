"""The data pipeline: a data source for Spark, and jobs over a store.

    room or file    what it holds                                                   needs Spark
    report.py       tables of text for people; plot.py: line charts as HTML         no
    progress.py     how far a job is                                                no
    parts.py        work shared out to tasks, or done here if Spark does not pay    no
    arguments.py    what a job was told; refusals before Spark starts               no
    accounts.py     the account for servers with access control                     no
    class_data.py   classes that the JVM starts faster with                         no
    masters.py      local, standalone, YARN, Kubernetes; shipping.py: our code, zipped   no
    session.py      a SparkSession from conf/spark.conf                             yes
    leasing/        what keeps cleaning from files that are being read              no
    decoding/       the bytes of a log as Arrow record batches                      no
    sink/           rows as messages of a topic, each stored once                   in part
    source/         the PySpark data source: options, plans, tasks, streams         in part
    archive/        Parquet files of messages: written, compared, compacted, read   to write
    analysis/       what audit, traffic, latency, … do in each part of a store      no
    jobs/           one file per job, each with `main(spark, arguments)`            in part
    runner.py       the child process that runs one job                             when it runs

Each room imports only those above it (tests/test_architecture.py).

Jobs run in child processes only (actors/jobs/spark_jobs.py), never in the broker's.
"""
