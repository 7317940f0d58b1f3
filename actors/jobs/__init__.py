"""Spark jobs as supervised child processes, on request and on a schedule.

    spark_jobs.py       actor with the table of runs and the schedule
    spark_job.py        actor of one run, and its child process
    messages.py         messages, and the state of a run
    scheduled_runs.py   runs of the schedule and their retries
    timetable.py        occasions of cron expressions, and which have run
    jobs_conf.py        conf/jobs.conf

    command line → SparkJobs    RunJob
    SparkJobs    → SparkJob     Cancel
    SparkJob     → SparkJobs    JobChanged

The child process is spark/runner.py.
"""
