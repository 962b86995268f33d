"""Spark's functions that no plan can hold: those that are not a function of one row alone."""

from __future__ import annotations

REPLAYED = "gives another answer when the plan is replayed", "use what the record holds, such as _timestamp"
_MANY_ROWS = "reads many rows, and an expression sees one", "write it in group_by(...).aggregate(name=...)"
_UNORDERED = (
    "takes any one of several rows, or takes them in any order",
    "use min or max, as in max(struct(at, value)).value, or sort_array(collect_list(value))",
)
_OTHER_ROWS = "reads many rows, and an expression sees one", "write it in group_by(...).aggregate(name=...)"
_MAKES_ROWS = "makes several rows of one, and a key has one row", "keep the array or map as a column"
_WINDOWS = "belongs to windows", "write group_by(...).windowed_by(...), whose rows have _window_start and _window_end"

_FUNCTIONS = {
    REPLAYED: """
        current_catalog current_database current_date current_schema current_time current_timestamp
        current_timezone current_user curdate localtimestamp now session_user user
        rand randn random randstr uniform uuid shuffle monotonically_increasing_id spark_partition_id
        input_file_name input_file_block_start input_file_block_length
        aes_encrypt java_method reflect try_reflect
    """,
    _OTHER_ROWS: "cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number grouping grouping_id",
    _MAKES_ROWS: """
        explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer stack
        variant_explode variant_explode_outer
    """,
    _WINDOWS: "window session_window window_time",
}
_AGGREGATES = {
    # What their result depends on: the group's rows alone, or also the order in which they come.
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
_DEPENDS_ON = {name: what for what, names in _AGGREGATES.items() for name in names.split()}
_REASONS = {name: reason for reason, names in _FUNCTIONS.items() for name in names.split()}

# Spark reads these without parentheses too, where no column has the name.
_BARE = frozenset({"current_date", "current_time", "current_timestamp", "current_user", "localtimestamp"}) | {
    *("session_user", "user", "current_catalog", "current_database", "current_schema")
}
# Called without an argument, these are the current time.
_NOW_WHEN_EMPTY = frozenset({"unix_timestamp", "to_unix_timestamp"})


def refused_call(name: str, *, has_arguments: bool) -> tuple[str, str] | None:
    """Why a function cannot be called, and what to do instead; None if it can."""
    if is_aggregate(name):
        return _MANY_ROWS
    return REPLAYED if name in _NOW_WHEN_EMPTY and not has_arguments else _REASONS.get(name)


def is_aggregate(name: str) -> bool:
    """Whether a function reads all rows of a group."""
    return name in _DEPENDS_ON


def refused_aggregate(name: str, around: str) -> tuple[str, str] | None:
    """Why an aggregate cannot be called inside the function `around` it, and what to do; None if it can."""
    match _DEPENDS_ON[name]:
        case "rows":
            return None
        case "order until sorted" if around in ("sort_array", "array_sort"):
            return None
        case _:
            return _UNORDERED


def refused_word(name: str) -> tuple[str, str] | None:
    """Why a word that is no column cannot stand in an expression; None if it is no such function."""
    return REPLAYED if name in _BARE else None
