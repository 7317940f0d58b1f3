"""Admin: administration of a cluster.

answers.py    results, and answers of several servers with their failures
base.py       connections, routes and requests, the base of all methods
topics.py     topics and their order; queues.py: queues and traffic
members.py    members of groups, producers; groups.py: settings and lag; offsets.py: resets
progress.py   results about what is consumed, in flight and stuck; stacks.py: threads of members
brokers.py    brokers and name servers; access.py: accounts
messages.py   messages; reading.py: reader of a queue, traces; trials.py: latency of sends
life.py       life of a message, from all of these
transfer.py   export and import of whole tables
"""

from troupemq.client.admin.access import AccessAdmin
from troupemq.client.admin.answers import Answers, Change, Result, Span, Time
from troupemq.client.admin.base import BrokerPlace
from troupemq.client.admin.life import LifeAdmin
from troupemq.client.admin.transfer import TransferAdmin
from troupemq.client.admin.trials import TrialAdmin

__all__ = ["Admin", "Answers", "BrokerPlace", "Change", "Result", "Span", "Time"]


class Admin(LifeAdmin, TransferAdmin, AccessAdmin, TrialAdmin):
    """Asks and changes brokers and name servers; every call blocks and raises ClientError.

        with Admin("127.0.0.1:9876") as admin:
            admin.create_topic("Orders", queue_count=8)
            progress = admin.group_progress("billing")
            print(sum(each.lag for each in progress), progress.failures)

    Methods that ask several servers return Answers: a sequence of results, and the failures of
    servers that did not answer. Changes are complete when the method returns.
    """
