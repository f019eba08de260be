"""Arrays in files against NumPy's in memory: one table of types, shapes, indices and values, and Hypothesis beyond it.

Each case runs on a numpy.ndarray and on a weftfs.Array. Results, types, shapes, warnings and exceptions must be the same, and so must
the contents afterwards. DELIBERATE has what differs, and why.
"""

import numpy as np
import pytest
import weftfs
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from outcomes import differences, outcome

SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), database=None)

PAIR = "[('x', 'f4'), ('y', 'i8', (2,))]"
GAPS = "{'names': ['a', 'b', 'c'], 'formats': ['u1', '>i4', 'S3'], 'offsets': [0, 4, 9], 'itemsize': 16}"
DTYPES = ["'u1'", "'i8'", "'>i2'", "'?'", "'f4'", "'>f8'", "'c8'", "'S3'", "'U2'", "'M8[ns]'", "'m8[s]'", "'V5'", PAIR, GAPS, "('i2', (2,))"]
SHAPES = ["()", "(5,)", "(3, 4)", "(2, 3, 4)", "(0,)", "(0, 3)", "(1, 1)"]

# Of expressions, so that a case reads as a program has it.
INDICES = """
... | () | None | (None, ...) | (..., None) | 0 | -1 | 2 | (0, 0) | (-1, ...) | (..., -1) | (0, 0, 0) | 99 | -99 | 2**70
slice(None) | slice(1, None) | slice(None, None, -1) | slice(-2, 99, 2) | slice(5, 1) | slice(None, None, 0) | slice(1.5) | slice('a')
(slice(None), 1) | (0, slice(None, None, -2)) | (slice(0, 0), slice(None)) | (..., slice(None, None, 2)) | (..., ...)
False | True | (True, False) | (0, True) | (True, 0) | (None, True) | (..., False) | np.True_ | np.False_
np.array(True) | np.array(False) | np.array(1) | np.array(1.0) | np.array([True]) | (np.array(True), 0) | (np.array(1), ...)
np.int8(1) | np.uint64(1) | np.float64(1) | 1.0 | 1.5 | 1j | 'x' | 'none' | b'x' | ('x', 0) | ['x'] | ['x', 'y'] | ['y', 'x'] | ['c', 'a']
['x', 'none'] | ['x', 'x'] | [] | [0] | [0, -1] | [[0, 1], [1, 0]] | [0, 99] | [1.0] | [0, [1, 2]] | [None] | [True] | [True, False]
np.array([], int) | np.array([]) | np.zeros((0, 2), int) | ([0], [0]) | ([0, 1], [0, 1]) | ([0, 1], [0, 1, 2]) | ([[0], [1]], [0, 1])
([0, 1], slice(None), [0, 1]) | (slice(None), [0, 2]) | (..., [0, 2]) | ([0, 1], 1) | (0, [0, 1]) | (None, [0, 1]) | ([0, 1], None)
(0, slice(None), [0, 1]) | np.arange(3) % 2 == 0 | np.ones(5, bool) | np.zeros(5, bool) | np.ones((3, 4), bool) | np.eye(3, 4, dtype=bool)
(np.ones(3, bool), 1) | (np.ones(3, bool), [0, 1, 2]) | (slice(None), np.array([True, False, True])) | range(2) | (range(2), 0)
[True, False, True] | np.ones((2, 3), bool) | (1, np.ones((3, 4), bool)) | np.array(['a']) | object() | {} | {0} | np.array([0, 1], object)
np.nonzero(np.ones(3)) | np.ix_([0, 1], [1, 0]) | (np.array([0, 1], 'u1'),) | np.array([0], 'u8') | (0,) * 70 | np.s_[0:2, ..., 0] | np.str_('x')
"""

VALUES = """
0 | 1 | -1 | 255 | 256 | 300 | 2**40 | 2**70 | True | 1.5 | 1e300 | float('nan') | float('inf') | 1j | 2+0j | None | 'a' | 'abcdef' | '7' | b'a'
b'abcdef' | b'7' | np.int64(300) | np.float64(1.5) | np.float64('nan') | np.float32(1e30) | np.complex64(1+2j) | np.bool_(True) | np.str_('5')
np.array(300) | np.array(1.5) | np.array(1j) | np.array([300]) | np.array([1.5, 2.5]) | np.array([1j]) | np.array([float('nan')]) | [1] | [300]
[[1]] | [[[1]]] | [[[[1]]]] | [1, 2] | [1, 2, 3] | [1, 2, 3, 4] | [1, 2, 3, 4, 5] | [[1], [2], [3]] | [1, [2]] | [float('nan')] | [1j] | [] | [[]] | ()
np.arange(4) | np.arange(4.0) | np.arange(12).reshape(3, 4) | np.arange(12)[::-1].reshape(1, 1, 3, 4) | np.zeros((2, 2)) | np.zeros(0) | [None]
(1, 2) | (1, (2, 3)) | (1, [2, 3]) | [(1, (2, 3))] | (1, 2, b'abc') | (300, 2, 3) | (1, 2, 'x') | [(1, 2, 3)] * 4 | (1,) | (1, 2, 3, 4) | ((1, 2),)
np.array((1, 2), [('p', 'i8'), ('q', 'f8')]) | np.array((1, 2, 3), 'i4,i4,i4') | np.array([(1, (2, 3))], [('x', 'f4'), ('y', 'i8', (2,))])
np.datetime64('2020-01-01') | np.datetime64('NaT') | np.timedelta64(5, 'm') | '2020-01-01' | np.array(['2021', '2022'], 'M8[Y]') | np.array('x')
np.array(['ab', 'c']) | np.array([b'ab', b'c']) | np.array(7, object) | np.array([1, None], object) | object() | {} | range(3) | bytearray(b'abc')
memoryview(b'abc') | np.void(b'abcde') | np.ma.array([1, 2], mask=[0, 1]) | np.float16(3) | np.array([1, 2, 3], '>i4') | np.array([[True, False]])
np.rec.array([(1, 2, b'a')]) | np.matrix([[1, 2, 3, 4]]) | 2**63 | -2**63 | np.uint64(2**64 - 1) | np.array([2**63], 'u8') | [2**40, 1]
"""

# Where the values go.
PLACES = {
    "()": ["...", "()", "True", "None"],
    "(5,)": ["...", "0", "slice(1, 3)", "slice(0, 0)", "[0, 2]", "[1, 1]", "np.arange(5) > 2", "False", "np.array(True)"],
    "(3, 4)": ["...", "0", "(0, 0)", "(slice(None), 1)", "(0, ...)", "(1, [0, 2])", "np.eye(3, 4, dtype=bool)", "(slice(None, None, 2), None)"],
}

# By index or value: what differs on purpose, and why.
DELIBERATE = {
    "np.array(['a'])": "an array of strings is no list of names; NumPy takes it for one by accident",
}


def expressions(table):
    found = [one.strip() for line in table.strip().splitlines() for one in line.split(" | ")]
    return [one for one in found if one not in DELIBERATE]


def value_of(expression):
    return eval(expression, {"np": np})


def filled(shape, dtype):
    """An array with different elements, and its dtype without a shape of its own."""
    model = np.zeros(shape, dtype)
    data = np.arange(model.nbytes, dtype="u1") * 7 % (2 if model.dtype == bool else 100)
    return data.view(model.dtype).reshape(model.shape) if model.nbytes else model


def array_of(weft, path, shape, dtype):
    array = weftfs.open_array(weft, path, shape, dtype, mode="w+", layout=(4096, 0, -1))
    array[...] = filled(shape, dtype)
    return array


def assign(target, key, value):
    target[key] = value


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_reads(weft, top, dtype, shape):
    of_shape, of_dtype = value_of(shape), np.dtype(value_of(dtype))
    model = filled(of_shape, of_dtype)
    found = []
    with array_of(weft, f"{top}/a", of_shape, of_dtype) as array:
        assert (array.shape, array.dtype, array.ndim, array.nbytes) == (model.shape, model.dtype, model.ndim, model.nbytes)
        for index in expressions(INDICES):
            key = value_of(index)
            found.append((f"a[{index}]", outcome(lambda: model[key]), outcome(lambda: array[key])))
    different = differences(found)
    assert not different, f"{dtype} {shape}: {len(different)} differ\n" + "\n".join(different)


@pytest.mark.parametrize("shape", PLACES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values(weft, top, dtype, shape):
    of_shape, of_dtype = value_of(shape), np.dtype(value_of(dtype))
    begin = filled(of_shape, of_dtype)
    found = []
    with array_of(weft, f"{top}/a", of_shape, of_dtype) as array:
        for index in PLACES[shape]:
            for value in expressions(VALUES):
                if not is_garbled(of_dtype, value_of(value)):
                    found.append(assigned(array, begin, index, value))
    different = differences(found)
    assert not different, f"{dtype} {shape}: {len(different)} differ\n" + "\n".join(different)


def is_garbled(dtype, value):
    """Whether NumPy may store uninitialised memory: it forgets the error when an index with arrays turns strings into times."""
    return dtype.kind in "mM" and isinstance(value, np.ndarray) and value.dtype.kind in "SU"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["'u1'", "'>f8'", PAIR, GAPS])
def test_writes(weft, top, dtype, shape):
    of_shape, of_dtype = value_of(shape), np.dtype(value_of(dtype))
    begin = filled(of_shape, of_dtype)
    found = []
    with array_of(weft, f"{top}/a", of_shape, of_dtype) as array:
        for index in expressions(INDICES):
            found.extend(assigned(array, begin, index, value) for value in ["7", "[7]", "np.arange(4)", "(1, 2)"])
    different = differences(found)
    assert not different, f"{dtype} {shape}: {len(different)} differ\n" + "\n".join(different)


def assigned(array, begin, index, value):
    """A case of ``a[index] = value``, which leaves ``array`` as it was."""
    model = begin.copy()
    expected = outcome(lambda: assign(model, value_of(index), value_of(value)))
    found = outcome(lambda: assign(array, value_of(index), value_of(value)))
    after = outcome(lambda: array[...])
    found = like(expected, found, outcome(lambda: begin[value_of(index)]))
    # Of a write that fails NumPy may have done a part.
    failed = expected[0][0] == "raised"
    expected = expected, outcome(lambda: begin if failed else model)
    if after != outcome(lambda: begin):
        array[...] = begin
    return f"a[{index}] = {value}", expected, (found, after)


def like(expected, found, read):
    """``found``, or ``expected`` where that is as good."""
    both_raise = expected[0][0] == found[0][0] == "raised"
    # NumPy does not promise which of two faults it reports, that of the index or that of the value.
    is_as_good = both_raise and (read[0][0] == "raised" or expected[0][1] == "SystemError")
    return expected if is_as_good else found


def selects_nothing(read):
    what, value = read[0][:2]
    return what == "returned" and value[0] == "array" and 0 in value[2]


@SETTINGS
@given(data=st.data(), shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
def test_any_index(weft, top, data, shape):
    dtype = np.dtype(value_of(data.draw(st.sampled_from(DTYPES))))
    model = filled(shape, dtype)
    one = st.one_of(
        st.none(), st.just(...), st.booleans(), st.integers(-6, 6), st.slices(6), st.floats(0, 2), st.sampled_from(["x", "y", "b"]),
        st.lists(st.integers(-5, 5), max_size=3), st.lists(st.booleans(), max_size=5), st.lists(st.sampled_from("xyabc"), max_size=3),
        hnp.arrays(st.sampled_from(["i8", "u1", "?"]), hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=5)),
    )
    key = data.draw(st.one_of(one, st.lists(one, max_size=5).map(tuple), hnp.basic_indices(shape, allow_newaxis=True)))
    with array_of(weft, f"{top}/a", shape, dtype) as array:
        assert outcome(lambda: array[key]) == outcome(lambda: model[key])
        value = data.draw(values())
        assume(not is_garbled(dtype, value))
        begin = model.copy()
        expected = outcome(lambda: assign(model, key, value))
        found = outcome(lambda: assign(array, key, value))
        read = outcome(lambda: begin[key])
        # Where nothing is selected, whether NumPy looks at the value depends on the form of the index. Of a value with two
        # faults, like a wrong shape and a wrong dtype, either may be reported.
        both_raise = expected[0][0] == found[0][0] == "raised"
        assert selects_nothing(read) or both_raise or like(expected, found, read) == expected
        assert outcome(lambda: array[...]) == outcome(lambda: begin if expected[0][0] == "raised" else model)


def values():
    scalars = st.one_of(
        st.integers(-300, 300), st.integers(), st.floats(), st.complex_numbers(), st.booleans(), st.text(max_size=3), st.binary(max_size=3),
        st.none(), st.sampled_from(["u1", "i4", "f8", "c16", "S2"]).flatmap(lambda kind: hnp.from_dtype(np.dtype(kind))),
    )
    nested = st.recursive(scalars, lambda inner: st.one_of(st.lists(inner, max_size=4), st.tuples(inner, inner)), max_leaves=6)
    arrays = hnp.arrays(
        st.sampled_from(["u1", "i8", ">f4", "c16", "?", "S3", "U2", "i4,f8"]),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    )
    return st.one_of(nested, arrays)


def test_what_else_an_array_does(weft, top):
    """Iteration, len, conversion; for each shape as NumPy has it."""
    uses = {
        "iter": lambda a: [np.asarray(row) for row in a], "len": len, "in": lambda a: 14 in a, "asarray": np.asarray, "sum": np.sum,
        "copy": lambda a: np.array(a, copy=True), "dtype": lambda a: np.asarray(a, "f2"), "list": list, "reversed": lambda a: list(reversed(a)),
        "size": lambda a: a.size, "itemsize": lambda a: a.itemsize, "float": float, "int": int, "bool": bool, "index": lambda a: [1, 2][a],
    }
    found = []
    for shape in SHAPES:
        of_shape = value_of(shape)
        model = filled(of_shape, "i4")
        with array_of(weft, f"{top}/a", of_shape, "i4") as array:
            for name, use in uses.items():
                found.append((f"{name} of {shape}", outcome(lambda: use(model)), outcome(lambda: use(array))))
    different = differences(found)
    assert not different, "\n".join(different)
