"""What is JSON of the declared columns, what is a tombstone, what is a record without a key, and what is broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark.serdes.json import encode_key, encode_value
from spark.serdes.records import decode
from spark.topology import Consumed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

ITEM = Consumed.json(key="id bigint", value="a int, s string")
NAMED = Consumed.json(key="name string", value="a int")
PAIR = Consumed.json(key="a int, b string", value="c int")
TYPED = Consumed.json(
    key="id bigint",
    value="d decimal(4,2), t timestamp, day date, f double, yes boolean, raw binary, list array<int>, "
    "m map<string,int>, s struct<`end`:int,`my-field`:string>",
)

Bytes = bytes | None
BROKEN = "broken"

NO_OBJECTS = {
    "empty": b"",
    "blank": b" \n",
    "text": b"nil",
    "a number": b"5",
    "a string": b'"x"',
    "an array": b'[{"a": 1}]',
    "cut off": b'{"a": 1',
    "a comma too many": b'{"a": 1, }',
    "single quotes": b"{'a': 1}",
    "no quotes": b"{a: 1}",
    "text behind it": b'{"a": 1} x',
    "text and a brace behind it": b'{"a": 1} x}',
    "another object behind it": b'{"a": 1}{"a": 2}',
    "a list of objects": b'{"a": 1},{"a": 2}',
    "text before it": b'x {"a": 1}',
    "a string for an int": b'{"a": "1"}',
    "a fraction for an int": b'{"a": 1.5}',
    "too great for an int": b'{"a": 3000000000}',
    "a boolean for an int": b'{"a": true}',
    "an array for an int": b'{"a": [1]}',
    "a leading zero": b'{"a": 01}',
    "no text": b"\xff\xfe",
    "a string that is not UTF-8": b'{"s": "\xff"}',
    "a byte order mark": b'\xef\xbb\xbf{"a": 1}',
    "a control character": b'{"s": "a\x00b"}',
    "a NaN for a string": b'{"s": NaN}',
    "a NaN that is not declared": b'{"other": NaN}',
    "an infinity that is not declared": b'{"other": -INF}',
    "too deep": b'{"other": ' + b"[" * 1500 + b"]" * 1500 + b"}",
}

NO_KEYS = {
    "text": b"x",
    "empty": b"",
    "a fraction": b"1.5",
    "too great": b"99999999999999999999",
    "a boolean": b"true",
    "an array": b"[1]",
    "single quotes": b"'1'",
    "a string for a bigint": b'{"id": "1"}',
    "cut off": b'{"id": 1',
    "text behind it": b'{"id": 1} x',
    "another object behind it": b'{"id": 1}{"id": 2}',
    "no text": b"\xff",
}


def decoded(
    session: SparkSession, consumed: Consumed, records: Sequence[tuple[Bytes, Bytes]]
) -> list[dict[str, object] | str]:
    """The decoded columns of each record, or BROKEN, in order."""
    numbered = [(number, key, value) for number, (key, value) in enumerate(records)]
    frame = session.createDataFrame(numbered, "_number int, _key binary, _value binary")
    found = sorted(decode(frame, consumed).drop("_key", "_value").collect(), key=lambda row: row["_number"])
    rows = [row.asDict(recursive=True) for row in found]
    return [
        BROKEN if row["_error"] is not None else {k: v for k, v in row.items() if k not in ("_number", "_error")}
        for row in rows
    ]


def values(session: SparkSession, consumed: Consumed, *texts: Bytes) -> list[object]:
    """What each value decodes to, without the key: its columns, "deleted" or "broken"."""
    found: list[object] = []
    for row in decoded(session, consumed, [(b"1", text) for text in texts]):
        if isinstance(row, str):
            found.append(row)
        else:
            columns = {k: v for k, v in row.items() if k not in ("id", "_deleted")}
            found.append("deleted" if row["_deleted"] else columns)
    return found


def keys(session: SparkSession, consumed: Consumed, *texts: Bytes) -> list[object]:
    """What each key decodes to: its column, or BROKEN."""
    name = consumed.key[0].name
    records = decoded(session, consumed, [(text, b'{"a": 1}') for text in texts])
    return [row if isinstance(row, str) else row[name] for row in records]


def test_an_object_is_read_by_its_declared_fields(session: SparkSession) -> None:
    assert values(
        session,
        ITEM,
        b'{"a": 1, "s": "x"}',
        b'{"s": "x"}',
        b"{}",
        b'{"a": null, "s": null}',
        b'{"a": 1, "other": {"a": 2}, "s": "}"}',
        b' \r\n\t{"a": 1} \r\n\t',
        '{"s": "größe ☃"}'.encode(),
        b'{"s": "\\u00e9\\n"}',
        b'{"A": 1, "S": "case counts"}',
        b'{"s": {"kept": "as text"}}',
    ) == [
        {"a": 1, "s": "x"},
        {"a": None, "s": "x"},
        {"a": None, "s": None},
        {"a": None, "s": None},
        {"a": 1, "s": "}"},
        {"a": 1, "s": None},
        {"a": None, "s": "größe ☃"},
        {"a": None, "s": "é\n"},
        {"a": None, "s": None},
        {"a": None, "s": '{"kept":"as text"}'},
    ]


def test_no_value_and_the_literal_null_are_tombstones(session: SparkSession) -> None:
    assert values(session, ITEM, None, b"null", b" null\n") == ["deleted"] * 3


def test_a_value_that_is_no_object_of_the_declared_types_is_broken(session: SparkSession) -> None:
    found = dict(zip(NO_OBJECTS, values(session, ITEM, *NO_OBJECTS.values()), strict=True))
    assert found == dict.fromkeys(NO_OBJECTS, BROKEN)


def test_values_have_the_declared_types_or_are_broken(session: SparkSession) -> None:
    good = [
        b'{"d": 12.3400}',
        b'{"d": "12.3"}',
        b'{"t": "2026-01-01T01:00:00+01:00"}',
        b'{"day": "2026-02-28"}',
        b'{"f": 1e3}',
        b'{"f": "-Infinity"}',
        b'{"yes": true}',
        b'{"raw": "aGk="}',
        b'{"list": [1, null]}',
        b'{"m": {"a": 1}}',
        b'{"s": {"end": 1, "my-field": "x"}}',
    ]
    found = [
        {name: str(value) for name, value in row.items() if value is not None}
        for row in values(session, TYPED, *good)
        if isinstance(row, dict)
    ]
    assert found == [
        {"d": "12.34"},
        {"d": "12.30"},
        {"t": "2026-01-01 00:00:00"},
        {"day": "2026-02-28"},
        {"f": "1000.0"},
        {"f": "-inf"},
        {"yes": "True"},
        {"raw": "bytearray(b'hi')"},
        {"list": "[1, None]"},
        {"m": "{'a': 1}"},
        {"s": "{'end': 1, 'my-field': 'x'}"},
    ]
    broken = [
        b'{"d": 123.4}',
        b'{"t": "yesterday"}',
        b'{"day": "2026-13-01"}',
        b'{"f": "1.5"}',
        b'{"yes": "true"}',
        b'{"raw": "%%"}',
        b'{"list": ["a"]}',
        b'{"m": {"a": "b"}}',
        b'{"s": {"end": "x"}}',
        b'{"s": 5}',
        # What Spark makes a value of, and another one than was written.
        b'{"d": "1,5"}',
        b'{"d": "10,00", "other": {"d": 1}}',
        b'{"f": 1e999}',
        b'{"f": "-Infinity", "f": -1e999}',
        b'{"f": "NaN", "f": ' + b"9" * 400 + b"}",
        b'{"f": Infinity}',
        b'{"t": 1700000000000}',
        b'{"t": "99999-01-01"}',
        b'{"t": 9223372036854775807}',
        b'{"t": 1715547198854989}',
        b'{"t": "12:34:56"}',
        b'{"s": "INFO", "f": 1e999}',
        b'{"day": "+99999-01-01"}',
        b'{"m": {"a": 1, "a": 2}}',
        # What would keep Spark busy for hours.
        b'{"d": 1e1000000000}',
        b'{"d": -1.5E-1000000000}',
        b'{"d": "1e1000000000"}',
    ]
    assert values(session, TYPED, *broken) == [BROKEN] * len(broken)


def test_what_looks_like_a_wrong_value_and_is_none_is_read(session: SparkSession) -> None:
    texts = [
        b'{"a": 1, "a": 2}',
        b'{"s": "NaN, INF and Infinity"}',
        b'{"other": {"d": "1,5"}, "s": "x"}',
        b'{"other": "12e45678", "s": "a hash"}',
    ]
    consumed = Consumed.json(key="id bigint", value="a int, s string, d decimal(4,2)")
    assert values(session, consumed, *texts) == [
        {"a": 2, "s": None, "d": None},
        {"a": None, "s": "NaN, INF and Infinity", "d": None},
        {"a": None, "s": "x", "d": None},
        {"a": None, "s": "a hash", "d": None},
    ]


def test_ids_and_long_arrays_beside_nested_decimals_are_read(session: SparkSession) -> None:
    long = b"[" + b",".join(b"12.%d" % (n % 100) for n in range(20_000)) + b"]"
    texts = [
        b'{"id": "3e44551c-0b1f-4d6a-9c3e-5e8844125e88", "lines": [{"sku": "5e884412", "price": 9.99}]}',
        b'{"id": "12e45678", "lines": [], "n": [1e3, 2]}',
        b'{"id": "x", "prices": ' + long + b"}",
        b'{"id": "x", "prices": [1, 1e1000000000]}',
    ]
    value = "id string, lines array<struct<sku:string,price:decimal(12,2)>>, prices array<decimal(10,2)>"
    found = values(session, Consumed.json(key="key bigint", value=value), *texts)
    assert [one == BROKEN for one in found] == [False, False, False, True]


def test_a_key_of_one_column_is_an_object_or_a_bare_scalar(session: SparkSession) -> None:
    found = keys(session, ITEM, b'{"id": 7}', b"7", b'"7"', b" 7 ", b'{"id": 7, "other": 1}', b'\n{"id": 7}\n')
    assert found == [7] * 6
    assert keys(session, NAMED, b'{"name": "a b"}', b'"a b"', b"a b", b' "a b" ') == ["a b"] * 4


def test_a_bare_json_string_is_read_as_json_and_other_text_as_it_is(session: SparkSession) -> None:
    texts = [b'"a\\"b"', b'"caf\\u00e9"', b'""', b'"null"', b"", b" ", b"7", b"'a'", b"[1]", b"a\\n"]
    assert keys(session, NAMED, *texts) == ['a"b', "café", "", "null", "", " ", "7", "'a'", "[1]", "a\\n"]


def test_a_record_says_itself_that_it_has_no_key(session: SparkSession) -> None:
    texts = [None, b"null", b" null ", b"{}", b'{"id": null}', b'{"other": 1}']
    assert keys(session, ITEM, *texts) == [None] * 6
    assert keys(session, NAMED, None, b"null", b"{}", b'{"name": null}') == [None] * 4
    whole = decoded(session, PAIR, [(text, b"{}") for text in (None, b"null", b"{}", b'{"a": null, "b": null}')])
    assert whole == [{"a": None, "b": None, "c": None, "_deleted": False}] * 4


def test_a_key_that_is_neither_an_object_nor_a_scalar_of_the_type_is_broken(session: SparkSession) -> None:
    found = dict(zip(NO_KEYS, keys(session, ITEM, *NO_KEYS.values()), strict=True))
    assert found == dict.fromkeys(NO_KEYS, BROKEN)


def test_a_text_key_that_is_broken_json_or_not_utf8_is_broken(session: SparkSession) -> None:
    texts = [b"\xff\xfe", b'"\xff"', b'"a', b'"a" "b"', b"{x", b'{"name": "a"} x']
    assert keys(session, NAMED, *texts) == [BROKEN] * len(texts)


def test_a_key_of_several_columns_is_an_object(session: SparkSession) -> None:
    texts = [b'{"a": 1, "b": "x"}', b'{"a": 1}', b"1", b'{"a": "x", "b": "y"}', b'{"a": 1, "b": "x"} z']
    assert decoded(session, PAIR, [(text, b'{"c": 5}') for text in texts]) == [
        {"a": 1, "b": "x", "c": 5, "_deleted": False},
        {"a": 1, "b": None, "c": 5, "_deleted": False},
        BROKEN,
        BROKEN,
        BROKEN,
    ]


def test_a_tombstone_with_a_broken_key_is_broken_and_one_with_a_good_key_is_none(session: SparkSession) -> None:
    assert decoded(session, ITEM, [(b"x", None), (b"1", None)]) == [
        BROKEN,
        {"id": 1, "a": None, "s": None, "_deleted": True},
    ]


def test_the_error_says_which_part_is_broken_and_what_was_declared(session: SparkSession) -> None:
    records = [(b"1", b"x"), (b"x", b"x"), (b"1", b"{}")]
    frame = session.createDataFrame(records, "_key binary, _value binary")
    errors = {row["_error"] for row in decode(frame, ITEM).collect()}
    assert errors == {
        "the value does not decode as JSON (a int, s string)",
        "the key does not decode as JSON (id bigint)",
        None,
    }


def test_decimals_are_never_rounded_neither_in_keys_nor_inside_of_values(session: SparkSession) -> None:
    consumed = Consumed.json(
        key="k decimal(6,2)",
        value="d decimal(12,2), w decimal(38,10), n decimal(5,0), lines array<struct<p:decimal(12,2)>>, "
        "m map<string,decimal(4,1)>, deep array<decimal(38,10)>",
    )
    good: list[tuple[Bytes, Bytes]] = [
        (b"1.500", b'{"d": 1.5000, "w": "1e-10", "n": 12e2, "lines": [{"p": 1.500}], "m": {"a": 2.50}}'),
        (b'"1e-2"', b'{"d": 1200e-4, "w": -0.00000000000, "n": 5.0, "other": 1.23456}'),
        (
            b'{"k": 0.10}',
            b'{"d": 0.000e-7, "lines": [{"p": null}, {}], "m": {}, "deep": [1e-10, "2.00000000000", null]}',
        ),
        (b"100e-2", None),
        # A number of more digits than a double has is not read by way of one.
        (b"1", b'{"d": 0.1000000000000000000000000000000000000000, "deep": [1234567890123456789012345678.0123456789]}'),
        (b"1", b'{"d": 1.500, "other": "a \\" 1.23456, \\"d\\": 9.99999", "m": {"1.25": 2.50}}'),
    ]
    assert [BROKEN if row == BROKEN else "read" for row in decoded(session, consumed, good)] == ["read"] * len(good)
    rounded: list[tuple[Bytes, Bytes]] = [
        (b"1.005", b"{}"),
        (b'"1.005"', None),
        (b'{"k": 1.005}', b"{}"),
        (b"1", b'{"d": 1.005}'),
        (b"1", b'{"d": "-1.005"}'),
        (b"1", b'{"d": 12345e-4}'),
        (b"1", b'{"d": 0.000000000000000000000000000000000000000001}'),
        (b"1", b'{"d": 0.10999999999999999999}'),
        (b"1", b'{"d": 0.1000000000000000000000000000000000000000000000000000001, "n": 1}'),
        (b"1", b'{"d": 1e-400}'),
        (b"1", b'{"deep": [1234567890123456789012345678.12345678901]}'),
        (b"1", b'{"lines": [{"p": 0.10999999999999999999}]}'),
        (b"1", b'{"w": 1e-11}'),
        (b"1", b'{"n": 0.5}'),
        (b"1", b'{"lines": [{"p": 1.00}, {"p": 1.005}]}'),
        (b"1", b'{"m": {"a": "2.55"}}'),
        (b"1", b'{"deep": [0.00000000001]}'),
        (b"1", b'{"deep": [null, 1e-11]}'),
    ]
    frame = session.createDataFrame([(n, *one) for n, one in enumerate(rounded)], "_n int, _key binary, _value binary")
    found = {row["_n"]: row["_error"] for row in decode(frame, consumed).collect()}
    value = "the value has more decimal places than declared (" + ", ".join(
        f"{column.name} {column.type}" for column in consumed.value
    )
    key = "the key has more decimal places than declared (k decimal(6,2))"
    assert found == {n: key if n < 3 else f"{value})" for n in range(len(rounded))}


CLOCKS = Consumed.json(
    key="k timestamp", value="t timestamp, n timestamp_ntz, day date, l array<timestamp>, s struct<date:date>, a int"
)
DAYS = Consumed.json(key="k date", value="a int")


def test_times_are_never_cut_neither_in_keys_nor_inside_of_values(session: SparkSession) -> None:
    at = "2026-01-01T10:00:00"
    good: list[tuple[Bytes, Bytes]] = [
        (f"{at}.123456000Z".encode(), f'{{"t": "{at}.123456000+01:00", "n": "{at}.1", "day": "2026-02-28"}}'.encode()),
        (f'"{at}.5Z"'.encode(), b'{"t": 1700000000, "day": null, "l": [], "s": {"date": "2026-02-28"}}'),
        (f'{{"k": "{at}Z"}}'.encode(), f'{{"l": ["{at}.123456Z", null, 1700000000], "s": {{}}}}'.encode()),
        (b"2026-01-01", b'{"day"  :  "2026-01-01", "other": "1.1234567"}'),
    ]
    assert [BROKEN if row == BROKEN else "read" for row in decoded(session, CLOCKS, good)] == ["read"] * len(good)
    now = f"{at}Z".encode()
    cut: list[tuple[Bytes, Bytes]] = [
        (f"{at}.1234561Z".encode(), b"{}"),
        (f'"{at}.1234561Z"'.encode(), None),
        (f'{{"k": "{at}.123456789Z"}}'.encode(), b"{}"),
        (b"12:34:56", b"{}"),
        (b"+12026-01-01", b"{}"),
        (now, f'{{"t": "{at}.1234561Z"}}'.encode()),
        (now, f'{{"n": "{at}.123456789"}}'.encode()),
        (now, f'{{"\\u0074": "{at}.1234561Z"}}'.encode()),
        (now, f'{{"l": ["{at}.1234561Z"]}}'.encode()),
        (now, b'{"l": [1700000000000]}'),
        (now, b'{"day": "2026-01-01T11:00"}'),
        (now, b'{"day": "2026-01-01 xx"}'),
        (now, b'{"day": "2026-1-1"}'),
        (now, b'{"d\\u0061y": "2026-01"}'),
        (now, b'{"s": {"date": "2026-01-01T23:00:00"}}'),
        (now, b'{"s": {"date": "2026"}}'),
    ]
    assert decoded(session, CLOCKS, cut) == [BROKEN] * len(cut)
    days = [b"2026-01-01T23:00:00", b"2026-01-01 xx", b'"2026-01"', b'{"k": "2026-01-01T11:00"}', b"+2026-01-01"]
    assert keys(session, DAYS, *days) == [BROKEN] * len(days)
    read = keys(session, DAYS, b"2026-01-01", b'"2026-01-01"', b'{"k": "2026-01-01"}')
    assert [str(day) for day in read] == ["2026-01-01"] * 3
    local = Consumed.json(key="k timestamp_ntz", value="a int")
    assert keys(session, local, b"2026-01-01T10:00:00+01:00", b"2026-01-01T10:00:00.1234561") == [BROKEN] * 2


def test_a_value_that_says_another_key_than_the_key_is_broken(session: SparkSession) -> None:
    consumed = Consumed.json(key="Id bigint, b string", value="ID bigint, name string")
    key = b'{"Id": 7, "b": "x"}'
    agree = [(key, b'{"ID": 7}'), (key, b'{"ID": null}'), (key, b'{"name": "x"}'), (key, None), (None, b'{"ID": 7}')]
    assert BROKEN not in decoded(session, consumed, agree)
    frame = session.createDataFrame([(key, b'{"ID": 8}')], "_key binary, _value binary")
    [row] = decode(frame, consumed).collect()
    assert (row["Id"], row["_error"]) == (None, "the value differs from the key (ID bigint)")


def test_columns_may_have_the_names_of_kafkas_and_names_that_need_quoting(session: SparkSession) -> None:
    kafka = Consumed.json(key="key string", value="value int, topic string, offset bigint, timestamp timestamp")
    assert decoded(session, kafka, [(b"k", b'{"value": 1, "topic": "t", "offset": 2}')]) == [
        {"key": "k", "value": 1, "topic": "t", "offset": 2, "timestamp": None, "_deleted": False}
    ]
    odd = Consumed.json(key="`my-key` int", value="`order` int, `größe` int, `it's` int, `a/b` int, `left` int")
    text = '{"order": 1, "größe": 2, "it\'s": 3, "a/b": 4, "left": 5}'.encode()
    assert decoded(session, odd, [(b'{"my-key": 7}', text)]) == [
        {"my-key": 7, "order": 1, "größe": 2, "it's": 3, "a/b": 4, "left": 5, "_deleted": False}
    ]


def test_names_that_may_be_written_in_several_ways_hide_nothing(session: SparkSession) -> None:
    odd = Consumed.json(
        key="k int", value="`a/b` decimal(6,2), `größe` decimal(6,2), `t\\x` timestamp, `a+b` decimal(6,2), plain int"
    )
    at = "2026-01-01T10:00:00"
    good = [
        b'{"a/b": 1.50, "a+b": 1.5, "t\\\\x": "2026-01-01T10:00:00.123456Z"}',
        b'{"a\\/b": "1.5", "gr\\u00f6\\u00dfe": 2.5, "aab": 1.2345, "other": {"a": 1.2345}}',
    ]
    assert BROKEN not in decoded(session, odd, [(b"1", text) for text in good])
    finer = [
        b'{"a/b": 1.505}',
        b'{"a\\/b": 1.505}',
        b'{"a\\/b" :\n "1.505"}',
        b'{"a\\/b": "1.55e-1"}',
        '{"größe": 1.505}'.encode(),
        b'{"gr\\u00f6\\u00dfe": 1.505}',
        b'{"a+b": "1.505", "plain": 1}',
        b'{"a+b": 1.5, "a+b"  :  1.505}',
        f'{{"t\\\\x": "{at}.1234567Z"}}'.encode(),
        f'{{"\\u0074\\\\x": "{at}.1234567Z"}}'.encode(),
    ]
    assert decoded(session, odd, [(b"1", text) for text in finer]) == [BROKEN] * len(finer)


def test_a_tinyint_that_does_not_fit_is_broken(session: SparkSession) -> None:
    small = Consumed.json(key="k tinyint", value="t tinyint")
    records = [(b"1", b'{"t": -128}'), (b"1", b'{"t": 200}'), (b"1", b'{"t": null}'), (b'{"k": 200}', b'{"t": 1}')]
    assert decoded(session, small, records) == [
        {"k": 1, "t": -128, "_deleted": False},
        BROKEN,
        {"k": 1, "t": None, "_deleted": False},
        BROKEN,
    ]


EVERY_TYPE = Consumed.json(
    key="id bigint",
    value="d decimal(20,10), t timestamp, n timestamp_ntz, day date, f float, dd double, yes boolean, raw binary, "
    "tiny tinyint, list array<decimal(4,2)>, m map<string,timestamp>, s struct<`end`:int,`my-field`:array<string>>, "
    "text string",
)
AT = "2024-02-29 23:59:59.123456"
ROWS = [
    f"""SELECT 1L AS id, 0.0000000001BD AS d, TIMESTAMP'{AT}' AS t, TIMESTAMP_NTZ'{AT}' AS n, DATE'0001-01-01' AS day,
        float('NaN') AS f, double('-Infinity') AS dd, true AS yes, X'00FF' AS raw, -128Y AS tiny,
        array(1.10BD, null) AS list, map('a', TIMESTAMP'{AT}', 'b', null) AS m,
        named_struct('end', 1, 'my-field', array('x', null)) AS s, 'größe "☃"\\n{{}}' AS text""",
    """SELECT 2L, 0BD, TIMESTAMP'1969-12-31 23:59:59.999999', null, DATE'9999-12-31', 1.1F, 1e300D, false, X'', 127Y,
        array(), map(), named_struct('end', null, 'my-field', null), ''""",
    "SELECT 3L, " + ", ".join(["null"] * 13),
    "SELECT 4L, 1234567890.0123456789BD, " + ", ".join(["null"] * 9) + ", map('n', null), null, 'null'",
]


def returned(consumed: Consumed, rows: DataFrame) -> tuple[list[Row], list[Row]]:
    """Rows, and what is decoded of their encoding, both by their text."""
    names = [column.name for column in consumed.columns]
    typed = rows.selectExpr(
        *(f"cast(`{column.name}` AS {column.type}) AS `{column.name}`" for column in consumed.columns)
    )
    key = tuple(column.name for column in consumed.key)
    text = typed.select(
        encode_key(typed, key).cast("binary").alias("_key"),
        encode_value(typed, tuple(column.name for column in consumed.value)).cast("binary").alias("_value"),
    )
    back = decode(text, consumed)
    assert back.where("_error IS NOT NULL OR _deleted").collect() == []
    return sorted(typed.collect(), key=str), sorted(back.select(*names).collect(), key=str)


def test_what_is_encoded_decodes_to_the_same_values(session: SparkSession) -> None:
    rows, back = returned(EVERY_TYPE, session.sql(" UNION ALL ".join(ROWS)))
    assert list(map(str, back)) == list(map(str, rows))  # as text, in which not a number equals itself


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("bigint", ["-1", "0", "9223372036854775807"]),
        ("string", ["''", "' x '", "'null'", "'7'", "'\"q\"'", "'{\"k\": 1}'", "'[1]'", "'größe ☃ \\\\ \\n'"]),
        ("decimal(20,10)", ["0", "1.1", "-0.0000000001"]),
        ("boolean", ["true", "false"]),
        ("binary", ["X'00FF'", "X''", "X'7B7D'"]),
        ("date", ["DATE'0001-01-01'", "DATE'2024-02-29'"]),
        ("timestamp", [f"TIMESTAMP'{AT}'", "TIMESTAMP'1969-12-31 23:59:59.999999'"]),
        ("timestamp_ntz", [f"TIMESTAMP_NTZ'{AT}'"]),
    ],
)
def test_a_key_of_one_column_decodes_to_itself(session: SparkSession, kind: str, values: list[str]) -> None:
    rows = session.sql(" UNION ALL ".join(f"SELECT {value} AS k, 1 AS v" for value in values))
    keys, back = returned(Consumed.json(key=f"k {kind}", value="v int"), rows)
    assert back == keys


def test_equal_keys_are_equal_bytes(session: SparkSession) -> None:
    rows = session.sql("SELECT 1.10BD AS d, 'a' AS s UNION ALL SELECT 1.1BD, 'a' UNION ALL SELECT null, null")
    assert [row[0] for row in rows.select(encode_key(rows, ("d",))).collect()] == ["1.10", "1.10", None]
    pairs = [row[0] for row in rows.select(encode_key(rows, ("d", "s"))).collect()]
    assert pairs == ['{"d":1.10,"s":"a"}', '{"d":1.10,"s":"a"}', None]


def test_a_row_of_a_key_alone_is_no_tombstone(session: SparkSession) -> None:
    assert [row[0] for row in session.range(1).select(encode_value(session.range(1), ())).collect()] == ["{}"]
