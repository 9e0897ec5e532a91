"""The conformance suite: the tests that every store must pass. Write a subclass, implement `make_store`, and run
pytest:

    class TestMyStore(StoreConformance):
        @pytest.fixture(autouse=True)
        def database(self, tmp_path):
            self.path = tmp_path / "runs.db"

        def make_store(self):
            return MyStore(self.path)

The tests are coroutines, so you need a plugin that runs `async def` tests. If your store has transactions for steps,
set `fails_in_steps` too.
"""

from perdure.testing.conformance.access import AccessRules
from perdure.testing.conformance.artifacts import ArtifactRules
from perdure.testing.conformance.claims import ClaimRules
from perdure.testing.conformance.clocks import ClockRules
from perdure.testing.conformance.commits import CommitRules
from perdure.testing.conformance.cooperation import CooperationRules
from perdure.testing.conformance.engines import EngineRules
from perdure.testing.conformance.events import EventRules
from perdure.testing.conformance.fleet import FleetRules
from perdure.testing.conformance.hostile_reads import HostileReadRules
from perdure.testing.conformance.lists import ListingRules
from perdure.testing.conformance.mail import MailRules
from perdure.testing.conformance.records import RecordVersionRules
from perdure.testing.conformance.rows import RecordRules
from perdure.testing.conformance.staged_steps import StagingRules
from perdure.testing.conformance.streams import StreamRules
from perdure.testing.conformance.tasks import TaskRules
from perdure.testing.conformance.waits import WaitRules

__all__ = ["StoreConformance"]


class StoreConformance(
    CommitRules,
    EngineRules,
    ClaimRules,
    RecordRules,
    ListingRules,
    MailRules,
    FleetRules,
    EventRules,
    WaitRules,
    StreamRules,
    StagingRules,
    ArtifactRules,
    TaskRules,
    RecordVersionRules,
    CooperationRules,
    AccessRules,
    ClockRules,
    HostileReadRules,
):
    """The tests of all rules that a store must follow."""
