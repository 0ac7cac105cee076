"""The result's file on the driver, and what Spark's rows can hold."""

import os

import pytest

from sparktrain.errors import GangError
from sparktrain.gang.result import Result, check_rows_can_hold, size_in_bytes


def test_a_result_is_a_file_without_a_name_that_can_be_opened() -> None:
    result = Result.of([b"hello ", bytearray(b"world"), b""])
    assert (result.size, result.read()) == (11, b"hello world")
    with open(result.path, "rb") as file:
        assert file.read() == b"hello world"
    assert os.fstat(result.fd).st_nlink == 0
    result.close()
    result.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(result.fd)


def test_a_result_that_nobody_holds_is_closed() -> None:
    fd = Result.of([b"weights"]).fd
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_an_empty_result() -> None:
    assert Result.of([]).read() == b""


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1g", 1 << 30),
        ("1G", 1 << 30),
        ("512m", 512 << 20),
        ("512mb", 512 << 20),
        (" 3k ", 3 << 10),
        ("2t", 2 << 40),
        ("1p", 1 << 50),
        ("100b", 100),
        ("1073741824", 1 << 30),
        ("1.5g", None),
        ("much", None),
        ("", None),
        (None, None),
    ],
)
def test_sizes_as_spark_writes_them(text: str | None, size: int | None) -> None:
    assert size_in_bytes(text) == size


def test_a_number_without_a_unit_has_the_setting_s() -> None:
    assert size_in_bytes("512", unit="m") == size_in_bytes("512m", unit="m") == 512 << 20
    assert size_in_bytes("512b", unit="m") == 512


@pytest.mark.parametrize(
    ("result_bytes", "limit", "memory"),
    [
        (512 << 20, None, "8g"),
        (512 << 20, "what?", "8g"),
        (1 << 30, "2g", "6g"),
        (1 << 40, "0", "6t"),
        (5, "10", "1"),
        (150_000_000, None, None),
    ],
)
def test_what_rows_can_hold(
    result_bytes: int, limit: str | None, memory: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    check_rows_can_hold(result_bytes, limit, memory)
    assert not caplog.records


@pytest.mark.parametrize("limit", ["1g", "1024m", None, "what?"])
def test_what_rows_can_not_hold_names_both_sizes_and_the_setting(limit: str | None) -> None:
    with pytest.raises(GangError) as caught:
        check_rows_can_hold((512 << 20) + 1, limit, "64g")
    shown = "1024m" if limit == "1024m" else "1g"
    assert "537 MB (536,870,913 bytes of parameters and buffers)" in str(caught.value)
    assert f"with spark.driver.maxResultSize={shown} Spark's rows take 536,870,912 bytes" in str(caught.value)
    assert "Raise spark.driver.maxResultSize on the server (0: no limit), or fit in a classic" in str(caught.value)


def test_what_the_server_s_heap_can_not_hold() -> None:
    with pytest.raises(
        GangError, match=r"with spark\.driver\.memory=1024 .* Raise spark\.driver\.memory on the server, or"
    ):
        check_rows_can_hold(300_000_000, "0", "1024")


def test_a_heap_that_is_not_told_is_spark_s_default() -> None:
    check_rows_can_hold(170_000_000, None, None)
    with pytest.raises(GangError, match=r"with spark\.driver\.memory=1g Spark's rows take"):
        check_rows_can_hold(300_000_000, None, None)
