"""Admin: what an application may ask of a cluster beyond sending and consuming.

answers.py    results, and answers of several servers of which some may be missing
base.py       connections, routes and questions, of which all is made
topics.py     topics and their orders; queues.py: their queues and traffic
members.py    members of groups, producers; groups.py: settings and lag; offsets.py: resets
brokers.py    brokers and name servers; access.py: accounts
messages.py   messages, by reading.py; trials.py: how long sends take
transfer.py   whole tables, exported and imported
"""

from troupemq.client.admin.access import AccessAdmin
from troupemq.client.admin.answers import Answers, Change, Result, Time
from troupemq.client.admin.base import BrokerPlace
from troupemq.client.admin.transfer import TransferAdmin
from troupemq.client.admin.trials import TrialAdmin

__all__ = ["Admin", "Answers", "BrokerPlace", "Change", "Result", "Time"]


class Admin(TransferAdmin, AccessAdmin, TrialAdmin):
    """Asks brokers and name servers; every call blocks and raises ClientError.

    Methods that ask several servers return Answers: a list of results, with the failures of
    those that did not answer. Changes are carried out when the method returns.
    """
