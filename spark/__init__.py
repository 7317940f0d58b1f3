"""The data pipeline: a data source and a sink for Spark, and jobs over a store.

    room or file    contents                                                 needs Spark
    report.py       text tables, line charts as HTML                         no
    progress.py     progress of a job                                        no
    parts.py        work run by Spark tasks, or in this process              no
    arguments.py    arguments of a job, checked before Spark starts          no
    accounts.py     the account for servers with access control              no
    class_data.py   class-data archive that shortens the start of the JVM    no
    masters.py      local, standalone, YARN, Kubernetes                      no
    shipping.py     this code as a zip, for workers                          no
    session.py      the SparkSession, from conf/spark.conf                   yes
    leasing/        leases that keep files from cleaning during a read       no
    decoding/       records of a log as Arrow record batches                 no
    sink/           rows sent as messages, each stored once                  in part
    source/         the PySpark data source: options, plans, tasks, streams  in part
    archive/        Parquet archives: write, verify, compact, read           to write
    analysis/       the work of the jobs on each part of a store             no
    jobs/           one file per job, each with `main(spark, arguments)`     in part
    runner.py       the child process that runs one job                      when it runs

Each room imports only those above it (tests/test_architecture.py).

Jobs run in child processes only (actors/jobs/spark_jobs.py), never in the broker process.
"""
