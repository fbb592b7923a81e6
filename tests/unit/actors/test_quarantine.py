"""Poison: two deaths condemn, a success acquits, time forgets, commands and bounds clear."""

from actors.quarantine import CONDEMNED_KEPT, SUSPECTS_KEPT, SUSPICION_S, Condemned, Quarantine, key_of


class Clock:
    """Seconds that the test sets."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        """Return them."""
        return self.now_s

    def wall_us(self) -> int:
        """Return them as µs."""
        return int(self.now_s * 1e6)


def made(clock: Clock | None = None, *condemned: Condemned) -> Quarantine:
    clock = clock or Clock()
    return Quarantine(monotonic_s=clock.monotonic_s, wall_us=clock.wall_us, condemned=condemned)


def blame(quarantine: Quarantine, key: bytes = b"k" * 16, cause: str = "killed") -> bool:
    return quarantine.blame(key, actor="searcher", kind="Search", size=10, cause=cause)


def test_the_second_death_condemns_and_names_both_causes() -> None:
    quarantine, changes = made(), []
    quarantine.changed = lambda: changes.append(1)
    assert not blame(quarantine, cause="first")
    assert quarantine.condemned() == []
    assert blame(quarantine, cause="second")
    found = quarantine.find(b"k" * 16)
    assert found is not None and found.causes == ("first", "second") and found.key == (b"k" * 16).hex()
    assert not quarantine.empty
    assert len(changes) == 1


def test_a_success_between_two_deaths_acquits() -> None:
    quarantine = made()
    blame(quarantine)
    quarantine.acquit(b"k" * 16)
    assert not blame(quarantine)


def test_a_death_long_ago_is_forgotten() -> None:
    clock = Clock()
    quarantine = made(clock)
    blame(quarantine)
    clock.now_s = SUSPICION_S + 1
    assert not blame(quarantine)
    assert blame(quarantine)


def test_clearing_one_leaves_the_others() -> None:
    quarantine = made()
    for key in (b"a", b"b"):
        blame(quarantine, key)
        blame(quarantine, key)
    assert quarantine.clear("no such key") == 0
    assert quarantine.clear(b"a".hex()) == 1
    assert quarantine.find(b"a") is None and quarantine.find(b"b") is not None
    assert quarantine.clear() == 1 and quarantine.empty


def test_what_was_condemned_before_is_known_from_the_start() -> None:
    old = Condemned(key=b"old".hex(), actor="core_writer", kind="PutUnit", bytes=3, causes=("x", "y"), at=1)
    assert made(None, old).find(b"old") == old


def test_both_lists_are_bounded_and_the_oldest_give_way() -> None:
    quarantine = made()
    for number in range(CONDEMNED_KEPT + 10):
        blame(quarantine, str(number).encode())
        blame(quarantine, str(number).encode())
    assert len(quarantine.condemned()) == CONDEMNED_KEPT
    assert quarantine.find(b"0") is None
    for number in range(SUSPECTS_KEPT + 1):
        blame(quarantine, f"s{number}".encode())
    assert not blame(quarantine, b"s0"), "the oldest suspicion was forgotten"
    assert blame(quarantine, b"s5")


def test_the_key_is_of_the_content() -> None:
    assert key_of(b"x") == key_of(b"x") != key_of(b"y")
