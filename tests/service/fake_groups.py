"""Groups without a connection, whose statuses tests set: for what needs exact times and no network."""

from __future__ import annotations

from pixelpod.v1 import group_pb2, images_pb2
from service.absence import Absence
from service.availability import Availability
from service.load import GroupLoad
from tests.service.stub_group import tiny_model


class FakeGroup:
    """What dispatching looks at of a `GroupConnection`. Ready until told otherwise; time stands still for its load."""

    def __init__(self, name: str = "a", free_slots: int = 0, **status: object) -> None:
        self.address = name
        self.model: images_pb2.Model | None = tiny_model()
        self.availability = Availability.READY
        self.load = GroupLoad(clock=lambda: 0.0)
        self.absence = Absence()
        self.tell(free_slots=free_slots, **status)

    def tell(self, **status: object) -> None:
        """Take a status with these fields."""
        told = {"group": self.address, "epoch": 1, "model": self.model, **status}
        self.load.take(group_pb2.GroupStatus(**told))

    @property
    def name(self) -> str:
        return self.address

    @property
    def epoch(self) -> int:
        return self.load.status.epoch

    @property
    def revision(self) -> str:
        assert self.model is not None
        return self.model.revision

    @property
    def ready(self) -> bool:
        return self.availability is Availability.READY

    def serves(self, model: str) -> bool:
        return self.ready and self.model is not None and self.model.name == model
