"""The exception tree: drawn as it is, and able to travel from an executor to the driver."""

import builtins
import inspect
import pickle
import re

import pytest

from sparktrain import errors
from sparktrain.errors import RankFailed, SparktrainError

CLASSES = [found for found in vars(errors).values() if inspect.isclass(found) and issubclass(found, SparktrainError)]
DRAWN = re.compile(r"^    (?P<lines>[ │├└─]*)(?P<name>[A-Z]\w+)(?:  .*?(?:\((?P<builtin>\w+Error)\))?)?$")


def drawn_tree() -> dict[str, tuple[str | None, str | None]]:
    """Name -> (parent's name, builtin in parentheses), read off the docstring."""
    tree: dict[str, tuple[str | None, str | None]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if match := DRAWN.match(line):
            path = path[: len(match["lines"]) // 4]
            tree[match["name"]] = (path[-1] if path else None, match["builtin"])
            path.append(match["name"])
    return tree


def test_the_drawn_tree_names_every_class() -> None:
    assert sorted(drawn_tree()) == sorted(kind.__name__ for kind in CLASSES)


@pytest.mark.parametrize(("name", "drawn"), drawn_tree().items())
def test_the_drawn_tree_matches_the_classes(name: str, drawn: tuple[str | None, str | None]) -> None:
    kind, (parent, builtin) = getattr(errors, name), drawn
    assert kind.__bases__[0] is (getattr(errors, parent) if parent else Exception)
    if builtin:
        assert issubclass(kind, getattr(builtins, builtin))


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_errors_pickle(kind: type[SparktrainError], protocol: int) -> None:
    again = pickle.loads(pickle.dumps(kind("what happened"), protocol))
    assert type(again) is kind
    assert str(again) == "what happened"


def test_a_failed_rank_keeps_its_attributes() -> None:
    again = pickle.loads(pickle.dumps(RankFailed("rank 3 failed", 3, "Traceback …", "last words")))
    assert str(again) == "rank 3 failed"
    assert (again.rank, again.traceback, again.log_tail) == (3, "Traceback …", "last words")
