from __future__ import annotations

from service.absence import Absence


def test_the_last_absence_tells_how_long_the_next_one_lasts() -> None:
    now = 0.0
    absence = Absence(clock=lambda: now)
    assert absence.seconds_left is None
    absence.note(ready=False)
    assert absence.seconds_left is None, "nothing is known yet"
    now = 30.0
    absence.note(ready=False)  # from loading to warming
    now = 40.0
    absence.note(ready=True)
    assert absence.seconds_left is None, "it is ready"
    absence.note(ready=False)
    now = 65.0
    assert absence.seconds_left == 15
    now = 100.0
    assert absence.seconds_left == 0
