"""Writes the Parquet files in `tests/vectors` that hold decimals and unsupported types, with pyarrow 26.

    make_vectors.py FOLDER
"""

import datetime
import decimal
import pathlib
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

FOLDER = pathlib.Path(sys.argv[1])
D = decimal.Decimal


class PlainKeys(pe.KmsClient):
    """A key service that only encodes keys, which is enough for a test file."""

    def __init__(self, _settings):
        pe.KmsClient.__init__(self)

    def wrap_key(self, key, _master):
        return key.hex().encode()

    def unwrap_key(self, key, _master):
        return bytes.fromhex(key.decode())


def decimals():
    small = [D("0.57"), D("-1.25"), None, D("99999.99")]
    large = [D("12345678901234567890123456789012345.678"), D("-0.001"), D("0.100"), D("7")]
    table = pa.table({
        "price": pa.array(small, pa.decimal128(7, 2)),
        "medium": pa.array([D("0.57"), D("-1.25"), D("90071992547.40993"), D("1")], pa.decimal128(18, 5)),
        "large": pa.array(large, pa.decimal128(38, 3)),
        "small": pa.array([D("1.5"), D("2"), D("-3.25"), D("0")], pa.decimal32(5, 2)),
        "list": pa.array([[D("0.5")], [], [D("1.5"), D("2.5")], [D("-1")]], pa.list_(pa.decimal128(5, 1))),
        "huge": pa.array([D("1"), D("2"), D("3"), D("4")], pa.decimal256(60, 1)),
    })
    for name, as_integers in [("decimals", False), ("decimals.integers", True)]:
        pq.write_table(table, FOLDER / f"{name}.parquet", store_decimal_as_integer=as_integers, compression="none",
                       write_page_checksum=True)


def unsupported():
    table = pa.table({
        "good": pa.array([1, 2], pa.int32()),
        "date": pa.array([datetime.date(2020, 1, 2)] * 2),
        "time": pa.array([datetime.time(1, 2, 3)] * 2),
        "when": pa.array([datetime.datetime(2020, 1, 2)] * 2),
        "none": pa.nulls(2),
        "pairs": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int32())),
        "nested": pa.array([[[1], [2, 3]], []], pa.list_(pa.list_(pa.int32()))),
    })
    pq.write_table(table, FOLDER / "unsupported.parquet", compression="none")
    pq.write_table(table.select(["good", "when"]), FOLDER / "int96.parquet", compression="none", use_deprecated_int96_timestamps=True)
    pq.write_table(table.select(["good"]), FOLDER / "brotli.parquet", compression="brotli")
    factory = pe.CryptoFactory(lambda settings: PlainKeys(settings))
    for name, has_plain_footer in [("encrypted", False), ("encrypted.plain_footer", True)]:
        keys = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": ["good"]}, plaintext_footer=has_plain_footer)
        properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), keys)
        with pq.ParquetWriter(FOLDER / f"{name}.parquet", table.select(["good"]).schema, encryption_properties=properties,
                              compression="none") as writer:
            writer.write_table(table.select(["good"]))


decimals()
unsupported()
