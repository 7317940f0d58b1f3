"""What the log says, in bulk: PySpark jobs over a store; a data source, over the network, too.

    file              what it does                                                 needs Spark
    store_files.py    a store's files as a reader sees them, without a lock         no
    records.py        consume queue units, each checked against its record          no
    log_walk.py       the records of one log file, without the queues               no
    columns.py        the columns of a message, and what old archives called them   no
    decode.py         checked records → Arrow record batches                        no
    bodies.py         compressed bodies, plain                                      no
    properties.py     keys, tags and unique keys out of property texts, in bulk     no
    plan.py           which queue offsets a job reads, cut into ranges              no
    options.py        the options of the data source, refused by name               no
    offsets.py        where queues begin and end, what of them options ask for      no
    splits.py         the tasks of a read                                           no
    origin.py         a store or a cluster, as a plan sees it                       its partition
    cluster.py        over the network: routes, ends of queues, places by time      its partition
    pulling.py        over the network: a task pulls its ranges                     its partition
    row_filter.py     which messages are wanted: tags, SQL92                        no
    reading.py        what a task does: ranges → record batches                     its partition
    pushdown.py       what filters of Spark leave of a read                         yes
    source.py         the PySpark data source over all of this                      yes
    stream.py         the batches of a stream                                       yes
    session.py        a SparkSession from conf/spark.conf                           yes
    parts.py          work shared out to tasks, or done here if Spark does not pay  no
    scan.py           messages for jobs that read them once                         no
    audit.py, …       what the jobs of these names do in each part                  no
    arguments.py      what a job was told; refusals before Spark starts             no
    report.py         tables of text for people                                     no
    plot.py           line charts as an HTML page                                   no
    runner.py         the child process that runs one job                           when it runs
    archive_run.py    one run of the archive job                                    yes
    archive_columns.py  an archive's columns, and old archives read as if they had them  no
    archive_check.py  what Spark wrote, compared with what was planned              no
    archive_verify.py an archive compared with the log                              no
    archive_files.py  a published archive: its manifests, its atomic publication    no
    jobs/             one file per job, each with `main(spark, arguments)`          yes

Jobs run in child processes only (actors/jobs/spark_jobs.py), never in the broker's.
"""
