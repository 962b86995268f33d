"""Spark's functions: how many arguments each takes, which ones no expression can call, and why."""

from __future__ import annotations

from spark.topology.errors import did_you_mean

REPLAYED = "returns another value when the plan is computed again", "use a column of the record, such as _timestamp"
_MANY_ROWS = "reads several rows, and an expression reads one", "write it in group_by(...).aggregate(name=...)"
_UNORDERED = (
    "depends on the order of the rows",
    "use min or max, as in max(struct(at, value)).value, or sort_array(collect_list(value))",
)
_MAKES_ROWS = "returns several rows, and a key has one row", "leave the array or map as a column"
_WINDOWS = (
    "cannot be called in an expression",
    "write group_by(...).windowed_by(...), whose rows have _window_start and _window_end",
)

_FUNCTIONS = {
    REPLAYED: """
        current_catalog current_database current_date current_schema current_time current_timestamp
        current_timezone current_user curdate localtimestamp now session_user user
        rand randn random randstr uniform uuid shuffle monotonically_increasing_id spark_partition_id
        input_file_name input_file_block_start input_file_block_length
        aes_encrypt java_method reflect try_reflect
    """,
    _MANY_ROWS: "cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number grouping grouping_id",
    _MAKES_ROWS: """
        collations explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer range
        sql_keywords stack variant_explode variant_explode_outer
    """,
    _WINDOWS: "window session_window window_time",
}
_AGGREGATES = {
    # What the result depends on: only the group's rows, or also their order.
    "rows": """
        any approx_count_distinct avg bit_and bit_or bit_xor bool_and bool_or corr count count_if covar_pop
        covar_samp every kurtosis max mean median min percentile regr_avgx regr_avgy regr_count regr_intercept
        regr_r2 regr_slope regr_sxx regr_sxy regr_syy skewness some std stddev stddev_pop stddev_samp sum try_avg
        try_sum var_pop var_samp variance
    """,
    "order until sorted": "array_agg collect_list collect_set",
    "order": """
        any_value approx_percentile bitmap_construct_agg bitmap_or_agg count_min_sketch first first_value
        histogram_numeric hll_sketch_agg hll_union_agg last last_value listagg max_by min_by mode
        percentile_approx percentile_cont percentile_disc schema_of_variant_agg string_agg
    """,
}
# By number of arguments: all functions of Spark 4.0 that are not in `_FUNCTIONS`.
_ARGUMENTS = {
    "0": "e pi version",
    "0-2": "make_ym_interval mode unix_timestamp",
    "0-4": "count_min_sketch make_dt_interval",
    "0-5": "mask",
    "0-7": "make_interval",
    "0+": "array arrays_zip concat map map_concat named_struct struct",
    "1": """
        abs acos acosh any array_agg array_compact array_distinct array_max array_min array_size ascii asin
        asinh atan atanh avg base64 bigint bin binary bit_and bit_count bit_length bit_or bit_xor
        bitmap_bit_position bitmap_bucket_number bitmap_construct_agg bitmap_count bitmap_or_agg bool_and
        bool_or boolean cardinality cast cbrt char char_length character_length chr collation collect_list
        collect_set cos cosh cot count_if crc32 csc date date_from_unix_date day dayname dayofmonth
        dayofweek dayofyear decimal degrees double every exp expm1 factorial flatten float hex
        hll_sketch_estimate hour initcap int is_valid_utf8 is_variant_null isnan isnotnull isnull
        json_array_length json_object_keys kurtosis last_day lcase len length ln log10 log1p log2 lower
        luhn_check make_valid_utf8 map_entries map_from_entries map_keys map_values max md5 mean median min
        minute month monthname negative nullifzero octet_length parse_json percentile_cont percentile_disc
        positive quarter radians raise_error reverse rint schema_of_variant schema_of_variant_agg sec second
        sha sha1 sign signum sin sinh size skewness smallint some soundex space sqrt std stddev stddev_pop
        stddev_samp string sum tan tanh timestamp timestamp_micros timestamp_millis timestamp_seconds
        tinyint to_variant_object try_avg try_cast try_parse_json try_sum try_url_decode try_validate_utf8
        typeof ucase unbase64 unhex unix_date unix_micros unix_millis unix_seconds upper url_decode
        url_encode validate_utf8 var_pop var_samp variance weekday weekofyear year zeroifnull
    """,
    "1-2": """
        any_value approx_count_distinct array_sort assert_true bround btrim ceil ceiling first first_value
        floor from_unixtime hll_sketch_agg hll_union_agg last last_value listagg log ltrim round rtrim
        schema_of_avro schema_of_csv schema_of_json schema_of_xml sort_array string_agg to_avro to_binary
        to_csv to_date to_json to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp to_xml trim
        try_to_binary try_to_timestamp
    """,
    "1-3": "sentences str_to_map",
    "1-7": "try_make_interval",
    "1+": "coalesce concat_ws count format_string hash printf xxhash64",
    "2": """
        add_months array_append array_contains array_except array_intersect array_position array_prepend
        array_remove array_repeat array_union arrays_overlap atan2 bit_get contains corr covar_pop
        covar_samp date_format date_part date_sub date_trunc datepart element_at encode endswith equal_null
        exists extract filter find_in_set forall format_number from_utc_timestamp get get_json_object getbit
        histogram_numeric hypot ifnull instr left map_contains_key map_filter map_from_arrays max_by min_by
        mod nanvl next_day nullif nvl pmod pow power regexp_count regexp_like regexp_substr regr_avgx
        regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy repeat right sha2
        shiftleft shiftright shiftrightunsigned startswith to_char to_number to_utc_timestamp to_varchar
        transform transform_keys transform_values trunc try_add try_divide try_element_at try_mod
        try_multiply try_subtract try_to_number xpath xpath_boolean xpath_double xpath_float xpath_int
        xpath_long xpath_number xpath_short xpath_string
    """,
    "2-3": """
        approx_percentile array_join convert_timezone date_add date_diff dateadd datediff from_avro from_csv
        from_json from_xml hll_union levenshtein locate lpad months_between parse_url percentile
        percentile_approx position regexp_extract regexp_extract_all regexp_instr replace rpad sequence
        split substr substring try_parse_url try_variant_get variant_get
    """,
    "2-4": "from_protobuf to_protobuf",
    "2-5": "aes_decrypt try_aes_decrypt",
    "2+": "decode elt greatest least",
    "3": """
        array_insert conv if make_date map_zip_with nvl2 slice split_part substring_index timediff
        timestampadd timestampdiff translate zip_with
    """,
    "3-4": "aggregate overlay reduce regexp_replace",
    "4": "width_bucket",
    "6": "make_timestamp_ntz try_make_timestamp_ntz",
    "6-7": "make_timestamp make_timestamp_ltz try_make_timestamp try_make_timestamp_ltz",
}
_DEPENDS_ON = {name: what for what, names in _AGGREGATES.items() for name in names.split()}
REFUSED = {name: reason for reason, names in _FUNCTIONS.items() for name in names.split()}
"""By the name of each function that no expression can call: the reason, and what to write instead."""
TAKES = {name: takes for takes, names in _ARGUMENTS.items() for name in names.split()}
"""By the name of each function that is not in `REFUSED`: how many arguments it takes."""

# Spark reads these without parentheses too, if no column has the name.
_BARE = frozenset({"current_date", "current_time", "current_timestamp", "current_user", "localtimestamp"}) | {
    *("session_user", "user", "current_catalog", "current_database", "current_schema")
}
# Without an argument, these return the current time.
_NOW_WHEN_EMPTY = frozenset({"unix_timestamp", "to_unix_timestamp"})


def refused_call(name: str, given: int | None) -> tuple[str, str] | None:
    """Why a row's expression cannot call a function with `given` arguments, and what to do instead; None if it can."""
    if is_aggregate(name):
        return _MANY_ROWS
    if name in _NOW_WHEN_EMPTY and given == 0:
        return REPLAYED
    return REFUSED.get(name)


def wrong_call(name: str, given: int | None) -> tuple[str, str] | None:
    """Why Spark would refuse a function's name or number of arguments, and what to do; None if it would not.

    `given` is None if the arguments cannot be counted.
    """
    if name not in TAKES:
        near = did_you_mean(name, list(TAKES))
        return "is not a Spark function", f"write a Spark function, or `{name}`() for a function of your own{near}"
    takes = TAKES[name]
    fewest, most = int(takes[0]), int(takes[-1]) if takes[-1] != "+" else None
    if given is None or (fewest <= given and (most is None or given <= most)):
        return None
    number = takes.replace("+", " or more").replace("-", " to ")
    what = f"takes {number} argument{'s' * (takes != '1')}, and {given} {'is' if given == 1 else 'are'} given"
    return what, f"see {name} in Spark's documentation"


def is_aggregate(name: str) -> bool:
    """True if a function reads all rows of a group."""
    return name in _DEPENDS_ON


def refused_aggregate(name: str, enclosing: str) -> tuple[str, str] | None:
    """Why an aggregate cannot be called inside the function `enclosing`, and what to do; None if it can."""
    match _DEPENDS_ON[name]:
        case "rows":
            return None
        case "order until sorted" if enclosing in ("sort_array", "array_sort"):
            return None
        case _:
            return _UNORDERED


def refused_word(name: str) -> tuple[str, str] | None:
    """Why an expression cannot contain a word that is no column, and what to do; None if it is not such a function."""
    return REPLAYED if name in _BARE else None
