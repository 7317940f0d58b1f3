"""AdminFlows: all operations of an Admin."""

from troupemq.client.admin.access import AccessAdmin
from troupemq.client.admin.life import LifeAdmin
from troupemq.client.admin.transfer import TransferAdmin
from troupemq.client.admin.trials import TrialAdmin


class AdminFlows(LifeAdmin, TransferAdmin, AccessAdmin, TrialAdmin):
    """The operations as coroutines, whatever their caller."""
