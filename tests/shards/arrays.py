"""Arrow arrays as Spark hands them over."""

from typing import Any

import pyarrow as pa

VECTOR = pa.struct(
    [
        ("type", pa.int8()),
        ("size", pa.int32()),
        ("indices", pa.list_(pa.int32())),
        ("values", pa.list_(pa.float64())),
    ]
)


def dense(*values: float) -> dict[str, Any]:
    """A dense `VectorUDT` value as Spark stores it."""
    return {"type": 1, "size": None, "indices": None, "values": list(values)}


def sparse(size: int, **values: float) -> dict[str, Any]:
    """A sparse one: ``sparse(4, i2=0.5)`` has 0.5 at index 2."""
    indices = [int(name[1:]) for name in values]
    return {"type": 0, "size": size, "indices": indices, "values": list(values.values())}


def vectors(*rows: dict[str, Any] | None) -> pa.Array:
    return pa.array(rows, type=VECTOR)


def batch(**columns: Any) -> pa.RecordBatch:
    """A record batch of columns given as lists or Arrow arrays."""
    arrays = [values if isinstance(values, pa.Array) else pa.array(values) for values in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
