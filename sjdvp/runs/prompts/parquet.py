"""Reader of Parquet, through pyarrow (the extra sjdvp[parquet])."""

import io
import math
from collections.abc import Iterable, Iterator
from typing import Any

from sjdvp.runs.prompts.columns import make_row
from sjdvp.runs.prompts.options import ReadOptions
from sjdvp.runs.prompts.record import Found, LeftOut, Problem, names_of

_NO_PYARROW = "pip install 'sjdvp[parquet]', or with pandas: read_parquet(FILE).to_csv(NEW)"


def read_parquet(chunks: Iterable[bytes], options: ReadOptions) -> Iterator[Found]:
    """Read the rows of a Parquet file; columns that hold bytes (images, say) are left out."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        yield Problem("file", "Parquet, which needs pyarrow", _NO_PYARROW)
        return
    try:
        file = parquet.ParquetFile(io.BytesIO(b"".join(chunks)))
        schema = file.schema_arrow
        names = [field.name for field in schema if "binary" not in str(field.type)]
        left = [repr(name) for name in schema.names if name not in names]
        yield from [LeftOut(f"not read, as they hold bytes: {names_of(left)}")] if left else []
        number = 0
        for batch in file.iter_batches(columns=names):
            for record in batch.to_pylist():
                number += 1
                yield make_row(f"row {number}", _plain(record), options)
    except arrow.ArrowException as error:
        yield Problem("file", f"Parquet, damaged: {str(error).splitlines()[0]}")


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it: dates and decimals become text, NaN null."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | None) else str(value)
