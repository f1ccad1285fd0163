"""Which pools are asked to give way, for whom, and for how long."""

from datetime import timedelta

from factories import NOW

from codeexec_operator.adapters.rooms import Rooms
from codeexec_operator.core.actions import DropMember, Plan
from codeexec_operator.core.observed import Room
from codeexec_operator.core.timing import Timing

TIMING = Timing(give_way=20, give_way_again=5)


class Stage:
    def __init__(self) -> None:
        self.woken: list[str] = []
        self.looked: list[str] = []
        self.time, self.look_seconds = 0.0, 0.0
        self.rooms = Rooms(self._look, self.woken.append, lambda: self.time)

    def _look(self, namespace: str) -> Room:
        self.looked.append(namespace)
        self.time += self.look_seconds
        return Room(ready=len(self.looked))

    def unserved(self, after: float, namespace: str = "box") -> int:
        return self.rooms.unserved(namespace, NOW + timedelta(seconds=after), TIMING)


def test_pools_hear_of_each_change_in_their_namespace_once() -> None:
    stage = Stage()
    for needs in (False, True, True, False, False):
        stage.rooms.know("box", "a", NOW, needs=needs)
    assert stage.woken == ["box", "box"]
    assert stage.rooms.held_until("box", NOW, TIMING) is None


def test_who_needs_room_is_served_once_and_again_after_a_pause_but_not_for_ever() -> None:
    stage = Stage()
    stage.rooms.know("box", "a", NOW, needs=True)
    stage.rooms.know("box", "b", NOW + timedelta(seconds=2), needs=True)
    assert stage.rooms.held_until("box", NOW, TIMING) == NOW + timedelta(seconds=22)
    assert stage.rooms.held_until("box", NOW + timedelta(seconds=22), TIMING) is None
    assert (stage.unserved(2), stage.unserved(2, "another")) == (2, 0)
    plan = Plan(actions=(DropMember("a"), DropMember("b", gives_way=True)))
    stage.rooms.given("box", plan, NOW + timedelta(seconds=2), TIMING)
    assert (stage.unserved(2), stage.unserved(6.9), stage.unserved(7)) == (1, 1, 2)
    assert (stage.unserved(20), stage.unserved(22)) == (1, 0)
    stage.rooms.know("box", "b", NOW, needs=False)
    assert stage.rooms.held_until("box", NOW, TIMING) == NOW + timedelta(seconds=20)


def test_who_has_pods_is_as_it_is_now_unless_looking_takes_long() -> None:
    stage = Stage()
    assert [stage.rooms.of("box").ready for _ in range(3)] == [1, 2, 3]
    stage.look_seconds = 0.01
    assert [stage.rooms.of("box").ready for _ in range(3)] == [4, 4, 4]
    assert stage.rooms.of("another").ready == 5
    stage.time += 0.09
    assert [stage.rooms.of("box").ready for _ in range(2)] == [6, 6]
    stage.look_seconds = 10
    assert stage.rooms.of("third").ready == 7
    stage.time += 0.9
    assert stage.rooms.of("third").ready == 7
    stage.time += 0.11
    assert stage.rooms.of("third").ready == 8, "an answer rests for a second at most"
