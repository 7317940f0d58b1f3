"""`job prepare`: makes a class-data archive, with which Spark's JVM starts faster."""

import os

import click

from spark.class_data import make_class_data
from spark.runner import environment
from troupemq.cli.admin.output import Output
from troupemq.cli.options import json_option
from troupemq.java import find_java


@click.command()
@json_option
def prepare(as_json: bool) -> None:
    """Makes a class-data archive for this Java and this Spark: sessions start faster then.

    Once on a machine, and again after an update of either. It takes up to a minute, and 200 MB in
    the user's cache; jobs use it by themselves.
    """
    directory = make_class_data(environment(os.environ, find_java(os.environ)))
    Output(as_json=as_json).done(f"Spark's JVM starts from {directory} now.", path=str(directory))
