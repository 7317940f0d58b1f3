"""What the log says, in bulk: PySpark jobs over a store directory.

    file              what it does                                                 needs Spark
    store_files.py    a store's files as a reader sees them, without a lock         no
    records.py        consume queue units, each checked against its record          no
    decode.py         checked records → Arrow record batches                        no
    properties.py     keys, tags and unique keys out of property texts, in bulk     no
    plan.py           which queue offsets to read, cut into ranges                  no
    source.py         the PySpark data source over all of this                      yes
    session.py        a SparkSession from conf/spark.conf                           yes
    parts.py          work shared out to tasks, or done here where Spark does not pay  no
    audit.py          a store against itself, by log and index files               no
    arguments.py      what a job was told; refusals before Spark starts             no
    report.py         tables of text for people                                    no
    plot.py           line charts as an HTML page                                  no
    runner.py         the child process that runs one job                           when it runs
    archive_run.py    one run of the archive job                                    yes
    archive_check.py  what Spark wrote, compared with what was planned              no
    archive_files.py  a published archive: its manifests, its atomic publication    no
    jobs/             one file per job, each with `main(spark, arguments)`          yes

Jobs run in child processes only (actors/jobs/spark_jobs.py), never in the broker's.
"""
