"""What a session's settings say about its task slots."""

import os
from typing import Any

import pytest

from sparktrain.session import local_slots, promised_slots, setting


class FakeSession:
    """The part of a session that settings are read from."""

    def __init__(self, **settings: str) -> None:
        self._settings = {f"spark.{key.replace('__', '.')}": value for key, value in settings.items()}
        self.conf = self

    def get(self, key: str, default: str | None) -> str | None:
        return self._settings.get(key, default)


@pytest.mark.parametrize(
    ("master", "slots"),
    [
        ("local", 1),
        ("local[1]", 1),
        ("local[4]", 4),
        ("local[4,2]", 4),
        ("local[4, 2]", 4),
        ("local[*]", os.cpu_count()),
        ("local[*,3]", os.cpu_count()),
        ("local-cluster[2,3,1024]", 6),
        ("local-cluster[2, 1, 1024]", 2),
        ("spark://host:7077", None),
        ("yarn", None),
        ("k8s://https://host:6443", None),
        ("localhost", None),
        ("local[]", None),
        ("", None),
    ],
)
def test_slots_of_a_master_url(master: str, slots: int | None) -> None:
    assert local_slots(master) == slots


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ({"master": "local[4]"}, 4),
        ({"master": "local[4]", "task__cpus": "2"}, 2),
        ({"master": "yarn", "executor__instances": "3", "executor__cores": "4"}, 12),
        ({"master": "yarn", "executor__instances": "3", "executor__cores": "5", "task__cpus": "2"}, 6),
        ({"master": "yarn", "executor__cores": "4"}, None),
        ({"executor__instances": "3"}, None),
        ({}, None),
    ],
)
def test_slots_the_settings_promise(settings: dict[str, str], slots: int | None) -> None:
    session: Any = FakeSession(**settings)
    assert promised_slots(session) == slots


def test_a_setting_the_server_does_not_tell() -> None:
    class Refusing(FakeSession):
        def get(self, key: str, default: str | None) -> str | None:
            raise RuntimeError("[CONFIG_NOT_AVAILABLE]")

    session: Any = Refusing()
    assert setting(session, "spark.master") is None
