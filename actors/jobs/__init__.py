"""Spark jobs as supervised child processes, and when they run.

    spark_jobs.py       the actor that everybody asks, and that follows the schedule
    spark_job.py        the actor of one run, and its child process
    messages.py         what they are told
    run_table.py        the runs that are known
    scheduled_runs.py   what becomes of the runs of the schedule
    timetable.py        occasions of cron expressions: which have had their run
    jobs_conf.py        conf/jobs.conf

Told by connections, the daemon and the command line. The child is spark/runner.py.
"""
