/* Every way to make a datatype, for memory and for the view of a file. Each type is used with what typemap.h finds it to
 * mean: as memory of a plain part of the file, as a view for plain memory, and as both. */
#include <complex.h>
#include <stdbool.h>
#include <stddef.h>
#include <wchar.h>

#include "typemap.h"

enum { REGION = 1 << 16, ITEMS = 3, UNTOUCHED = 0xcc };

/* Either of all ranks, each with a region of its own, or of this rank. */
static MPI_File file, shared_file, own_file;
static unsigned char region[REGION], expected[REGION];

static MPI_Offset my_region(void) { return file == shared_file ? (MPI_Offset)rank * REGION : 0; }

static void say(const char *what, const struct type *type) {
    static char text[400];
    snprintf(text, sizeof text, "%s%s: %s", what, by_large_counts ? " (large counts)" : "", type->text);
    case_name = text;
}

static void bytes_view(void) {
    MUST(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
}

static void reset_region(void) {
    memset(region, UNTOUCHED, REGION);
    MUST(MPI_File_write_at(file, my_region(), region, REGION, MPI_BYTE, MPI_STATUS_IGNORE));
}

static void check_region(void) {
    MUST(MPI_File_read_at(file, my_region(), region, REGION, MPI_BYTE, MPI_STATUS_IGNORE));
    SAME(region, expected, REGION);
}

static int64_t counted_bytes(const MPI_Status *status) {
    int bytes = -1;
    MUST(MPI_Get_count(status, MPI_BYTE, &bytes));
    return bytes;
}

/* Memory that only the type's bytes were read to: the rest is as before. */
static void check_memory(const struct memory *memory, const struct map *map, int64_t count,
                         const unsigned char *data) {
    unsigned char *should = allocate((size_t)memory->bytes);
    memset(should, UNTOUCHED, (size_t)memory->bytes);
    for (int64_t i = 0; i < count * map->bytes; i++) should[nth_byte(map, i) - memory->low] = data[i];
    SAME(memory->all, should, memory->bytes);
    free(should);
}

/* The type in memory, the file plain. */
static void as_memory(const struct type *type) {
    say("in memory", type);
    const struct map *map = &type->map;
    int64_t bytes = ITEMS * map->bytes;
    CHECK(bytes < REGION - 8);
    struct memory memory = memory_for(map, ITEMS);
    MPI_Status status;
    bytes_view();
    reset_region();
    fill(memory.all, rank, (size_t)memory.bytes, 7);
    memset(expected, UNTOUCHED, REGION);
    for (int64_t i = 0; i < bytes; i++) expected[8 + i] = memory.start[nth_byte(map, i)];
    MUST(MPI_File_write_at(file, my_region() + 8, memory.start, ITEMS, type->mpi, &status));
    EQUAL(counted_bytes(&status), bytes);
    if (bytes) COUNTS(&status, type->mpi, ITEMS);
    check_region();
    memset(memory.all, UNTOUCHED, (size_t)memory.bytes);
    MUST(MPI_File_read_at_all(file, my_region() + 8, memory.start, ITEMS, type->mpi, &status));
    EQUAL(counted_bytes(&status), bytes);
    check_memory(&memory, map, ITEMS, expected + 8);
    free(memory.all);
}

/* The type as the view, memory plain elements. */
static void as_view(const struct type *type, const struct type *element) {
    say("as view", type);
    const struct map *map = &type->map;
    CHECK(is_view(map));
    int count = (int)(map->bytes * 5 / 2 / element->map.bytes), shift = (int)extent_of(&element->map) * 2;
    int64_t bytes = count * element->map.bytes;
    struct memory memory = memory_for(&element->map, count);
    MPI_Status status;
    bytes_view();
    reset_region();
    fill(memory.all, rank, (size_t)memory.bytes, 8);
    memset(expected, UNTOUCHED, REGION);
    unsigned char *data = allocate((size_t)bytes);
    for (int64_t i = 0; i < bytes; i++) {
        int64_t at = shift + nth_byte(map, i);
        CHECK(at < REGION);
        expected[at] = data[i] = memory.start[nth_byte(&element->map, i)];
    }
    MUST(MPI_File_set_view(file, my_region() + shift, element->mpi, type->mpi, "native", MPI_INFO_NULL));
    MUST(MPI_File_write_all(file, memory.start, count, element->mpi, &status));
    EQUAL(counted_bytes(&status), bytes);
    bytes_view();
    check_region();
    MUST(MPI_File_set_view(file, my_region() + shift, element->mpi, type->mpi, "native", MPI_INFO_NULL));
    memset(memory.all, UNTOUCHED, (size_t)memory.bytes);
    MUST(MPI_File_read(file, memory.start, count, element->mpi, &status));
    EQUAL(counted_bytes(&status), bytes);
    check_memory(&memory, &element->map, count, data);
    free(memory.all);
    free(data);
}

/* The type in memory and as the view: starting at the second element. */
static void as_both(const struct type *type, const struct type *element) {
    say("as both", type);
    const struct map *map = &type->map;
    int64_t bytes = ITEMS * map->bytes, skipped = element->map.bytes;
    struct memory memory = memory_for(map, ITEMS);
    MPI_Status status;
    bytes_view();
    reset_region();
    fill(memory.all, rank, (size_t)memory.bytes, 9);
    memset(expected, UNTOUCHED, REGION);
    unsigned char *data = allocate((size_t)bytes);
    for (int64_t i = 0; i < bytes; i++)
        expected[nth_byte(map, skipped + i)] = data[i] = memory.start[nth_byte(map, i)];
    MUST(MPI_File_set_view(file, my_region(), element->mpi, type->mpi, "native", MPI_INFO_NULL));
    MUST(MPI_File_write_at(file, 1, memory.start, ITEMS, type->mpi, &status));
    EQUAL(counted_bytes(&status), bytes);
    memset(memory.all, UNTOUCHED, (size_t)memory.bytes);
    MUST(MPI_File_read_at_all(file, 1, memory.start, ITEMS, type->mpi, &status));
    EQUAL(counted_bytes(&status), bytes);
    check_memory(&memory, map, ITEMS, data);
    bytes_view();
    check_region();
    free(memory.all);
    free(data);
}

static void use_with(MPI_File which, const struct type *type, const struct type *element) {
    file = which;
    say("packed", type);
    check_map(type);
    as_memory(type);
    if (element && is_view(&type->map)) {
        as_view(type, element);
        as_both(type, element);
    }
    file = shared_file;
}

/* The ranks take turns with a file of their own; some types are for all together. */
static void use(const struct type *type, const struct type *element) {
    static int number;
    if (number % size == rank) use_with(own_file, type, element);
    if (number++ % (by_large_counts ? 20 : 5) == 0) use_with(shared_file, type, element);
}

/* With the calls for small and for large counts. */
static void with_both_counts(void (*run)(void)) {
    char name[2048];
    snprintf(name, sizeof name, "%s.%d", file_name, rank);
    file = shared_file = open_fresh(file_name);
    own_file = open_by(MPI_COMM_SELF, name, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE);
    int last = HAS_LARGE_COUNTS && !is_left_out("large");
    for (by_large_counts = 0; by_large_counts <= last; by_large_counts++) {
        run();
        free_types();
    }
    by_large_counts = 0;
    MUST(MPI_File_close(&own_file));
    close_and_delete(&shared_file, file_name);
}

static const struct type *integer(void) { return plain(MPI_INT, sizeof(int), "int"); }

#define NAMED(mpi, type) {mpi, sizeof(type), #mpi}

static void run_named(void) {
    const struct {
        MPI_Datatype mpi;
        size_t bytes;
        const char *text;
    } named[] = {
        NAMED(MPI_CHAR, char), NAMED(MPI_SIGNED_CHAR, signed char), NAMED(MPI_UNSIGNED_CHAR, unsigned char),
        NAMED(MPI_BYTE, char), NAMED(MPI_WCHAR, wchar_t), NAMED(MPI_SHORT, short),
        NAMED(MPI_UNSIGNED_SHORT, unsigned short), NAMED(MPI_INT, int), NAMED(MPI_UNSIGNED, unsigned),
        NAMED(MPI_LONG, long), NAMED(MPI_UNSIGNED_LONG, unsigned long), NAMED(MPI_LONG_LONG, long long),
        NAMED(MPI_UNSIGNED_LONG_LONG, unsigned long long), NAMED(MPI_FLOAT, float), NAMED(MPI_DOUBLE, double),
        NAMED(MPI_LONG_DOUBLE, long double), NAMED(MPI_INT8_T, int8_t), NAMED(MPI_INT16_T, int16_t),
        NAMED(MPI_INT32_T, int32_t), NAMED(MPI_INT64_T, int64_t), NAMED(MPI_UINT8_T, uint8_t),
        NAMED(MPI_UINT16_T, uint16_t), NAMED(MPI_UINT32_T, uint32_t), NAMED(MPI_UINT64_T, uint64_t),
        NAMED(MPI_C_BOOL, bool), NAMED(MPI_C_FLOAT_COMPLEX, float complex),
        NAMED(MPI_C_DOUBLE_COMPLEX, double complex), NAMED(MPI_AINT, MPI_Aint), NAMED(MPI_OFFSET, MPI_Offset),
        NAMED(MPI_COUNT, MPI_Count), NAMED(MPI_PACKED, char),
    };
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        const struct type *type = plain(named[i].mpi, (int64_t)named[i].bytes, named[i].text);
        use(type, type);
    }
}

struct short_int { short first; int second; };
struct long_int { long first; int second; };
struct float_int { float first; int second; };
struct double_int { double first; int second; };
struct long_double_int { long double first; int second; };
struct two_int { int first, second; };

#define PAIR(mpi, type) \
    pair(mpi, sizeof ((struct type *)0)->first, offsetof(struct type, second), sizeof(int), sizeof(struct type), #mpi)

static void run_pairs(void) {
    const struct type *pairs[] = {
        PAIR(MPI_SHORT_INT, short_int),   PAIR(MPI_LONG_INT, long_int),     PAIR(MPI_FLOAT_INT, float_int),
        PAIR(MPI_DOUBLE_INT, double_int), PAIR(MPI_2INT, two_int),
        PAIR(MPI_LONG_DOUBLE_INT, long_double_int),
    };
    for (int i = 0; i < 6; i++) {
        use(pairs[i], pairs[i]);
        use(vector_of(3, 2, 3, pairs[i]), pairs[i]);
    }
}

/* What Fortran programs use, where the MPI knows Fortran. */
static void run_fortran(void) {
    const struct {
        MPI_Datatype mpi;
        const char *text;
    } named[] = {
        {MPI_INTEGER, "INTEGER"}, {MPI_REAL, "REAL"}, {MPI_DOUBLE_PRECISION, "DOUBLE PRECISION"},
        {MPI_COMPLEX, "COMPLEX"}, {MPI_LOGICAL, "LOGICAL"}, {MPI_CHARACTER, "CHARACTER"},
    };
    for (int i = 0; i < 6; i++) {
        int bytes = 0;
        if (named[i].mpi == MPI_DATATYPE_NULL) continue;
        if (MPI_Type_size(named[i].mpi, &bytes) != MPI_SUCCESS || bytes <= 0) continue;
        use(plain(named[i].mpi, bytes, named[i].text), plain(named[i].mpi, bytes, named[i].text));
    }
    MPI_Datatype kinds[3] = {MPI_DATATYPE_NULL, MPI_DATATYPE_NULL, MPI_DATATYPE_NULL};
    int is_there[3] = {
        MPI_Type_create_f90_integer(9, &kinds[0]) == MPI_SUCCESS,
        MPI_Type_create_f90_real(15, 307, &kinds[1]) == MPI_SUCCESS,
        MPI_Type_create_f90_complex(6, 37, &kinds[2]) == MPI_SUCCESS,
    };
    for (int i = 0; i < 3; i++) {
        if (!is_there[i] || kinds[i] == MPI_DATATYPE_NULL) continue;
        const struct type *kind = plain(kinds[i], i ? 8 : 4, i == 0 ? "f90_integer" : i == 1 ? "f90_real" : "f90_complex");
        use(kind, kind);
        use(vector_of(3, 1, 2, kind), kind);
    }
}

static void run_simple(void) {
    const struct type *element = integer();
    use(dup_of(element), element);
    use(dup_of(vector_of(2, 1, 2, element)), element);
    use(contiguous_of(7, element), element);
    use(contiguous_of(3, vector_of(2, 1, 3, element)), element);
    use(vector_of(4, 2, 3, element), element);
    use(vector_of(4, 3, 3, element), element);
    use(vector_of(1, 5, 9, element), element);
    use(hvector_of(4, 2, 20, element), element);
    use(hvector_of(3, 1, 4, element), element);
    use(hvector_of(3, 2, 100, vector_of(2, 1, 2, element)), element);
    const struct type *letter = plain(MPI_CHAR, 1, "char");
    use(vector_of(50, 3, 7, letter), letter);
    use(hvector_of(5, 1, 11, vector_of(3, 1, 3, letter)), letter);
}

static void run_indexed(void) {
    const struct type *element = integer();
    const int64_t blocks[] = {2, 1, 0, 3, 1}, places[] = {1, 5, 6, 8, 14}, bytes[] = {4, 20, 24, 40, 100};
    use(indexed_of(5, blocks, places, element), element);
    use(hindexed_of(5, blocks, bytes, element), element);
    use(indexed_block_of(5, 1, places, element), element);
    const int64_t apart[] = {0, 3, 7, 10, 17};
    use(indexed_block_of(5, 3, apart, element), element);
    const int64_t bytes_apart[] = {0, 12, 40, 60, 204};
    use(hindexed_block_of(5, 3, bytes_apart, element), element);
    const int64_t growing[] = {1, 2, 3, 4}, triangle[] = {0, 4, 8, 12};
    use(indexed_of(4, growing, triangle, element), element);
    use(indexed_of(2, blocks, triangle, indexed_block_of(2, 1, blocks, element)), element);
    const struct type *single = indexed_of(1, growing, triangle, element);
    use(single, element);
}

static void run_structures(void) {
    struct type *element = (struct type *)integer();
    struct type *parts[] = {element, vector_of(2, 1, 2, element), contiguous_of(3, element)};
    const int64_t blocks[] = {2, 2, 1}, places[] = {4, 16, 60};
    use(resized_of(0, 100, struct_of(3, blocks, places, parts)), element);
    use(resized_of(0, 76, struct_of(3, blocks, places, parts)), element);
    /* Parts of different kinds: only plain bytes can be their element. */
    const struct type *byte = plain(MPI_BYTE, 1, "byte");
    struct type *mixed[] = {
        plain(MPI_CHAR, 1, "char"), plain(MPI_DOUBLE, 8, "double"), plain(MPI_SHORT, 2, "short"),
        is_left_out("pairs") ? plain(MPI_FLOAT, 4, "float") : PAIR(MPI_SHORT_INT, short_int),
    };
    const int64_t mixed_blocks[] = {3, 2, 1, 2}, mixed_places[] = {0, 8, 26, 32};
    struct type *structure = resized_of(0, 56, struct_of(4, mixed_blocks, mixed_places, mixed));
    use(structure, byte);
    use(vector_of(2, 1, 2, structure), byte);
    use(vector_of(2, 2, 3, structure), structure);
    const int64_t nothing[] = {0, 0, 0, 0};
    use(resized_of(0, 8, struct_of(4, nothing, mixed_places, mixed)), byte);
}

static void run_arrays(void) {
    const struct type *element = integer(), *real = plain(MPI_DOUBLE, 8, "double");
    static const int orders[] = {MPI_ORDER_C, MPI_ORDER_FORTRAN};
    for (int i = 0; i < 2; i++) {
        const int64_t sizes[] = {5, 6, 4, 3}, parts[] = {2, 3, 2, 3}, starts[] = {1, 2, 1, 0};
        for (int dimensions = 1; dimensions <= 4; dimensions++)
            use(subarray_of(dimensions, sizes, parts, starts, orders[i], element), element);
        const int64_t rows[] = {2, 6}, from[] = {3, 0};
        use(subarray_of(2, sizes, rows, from, orders[i], element), element);
        use(subarray_of(2, sizes, sizes, (const int64_t[]){0, 0}, orders[i], real), real);
        use(subarray_of(2, sizes, parts, starts, orders[i], vector_of(2, 1, 2, element)), element);
    }
}

static void run_distributed_arrays(void) {
    const struct type *element = integer();
    static const int orders[] = {MPI_ORDER_C, MPI_ORDER_FORTRAN};
    const int block = MPI_DISTRIBUTE_BLOCK, cyclic = MPI_DISTRIBUTE_CYCLIC, none = MPI_DISTRIBUTE_NONE;
    const int usual = MPI_DISTRIBUTE_DFLT_DARG;
    const struct {
        int dimensions;
        int64_t sizes[3];
        int distributions[3], arguments[3], grid[3];
    } arrays[] = {
        {1, {10}, {block}, {usual}, {4}},
        {1, {10}, {cyclic}, {usual}, {4}},
        {1, {23}, {cyclic}, {3}, {4}},
        {1, {10}, {block}, {3}, {4}},
        {2, {7, 9}, {block, block}, {usual, usual}, {2, 2}},
        {2, {7, 9}, {cyclic, block}, {2, usual}, {2, 2}},
        {2, {6, 8}, {none, cyclic}, {usual, usual}, {1, 4}},
        {2, {11, 5}, {cyclic, none}, {3, usual}, {4, 1}},
        {3, {4, 5, 6}, {block, cyclic, cyclic}, {usual, 2, usual}, {2, 1, 2}},
        {3, {5, 4, 3}, {cyclic, none, block}, {usual, usual, 2}, {2, 1, 2}},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        for (int order = 0; order < 2; order++) {
            const struct type *array = darray_of(4, rank % 4, arrays[i].dimensions, arrays[i].sizes, arrays[i].distributions,
                                                 arrays[i].arguments, arrays[i].grid, orders[order], element);
            CHECK(array->map.bytes > 0);
            use(array, element);
            if (order == (int)i % 2) use(darray_of(4, rank % 4, arrays[i].dimensions, arrays[i].sizes,
                                              arrays[i].distributions, arrays[i].arguments, arrays[i].grid,
                                              orders[order], vector_of(2, 1, 2, element)), element);
        }
}

/* All ranks together hold every element of the array once. */
static void run_whole_array(void) {
    if (size < 4) return;
    const int64_t sizes[] = {11, 13};
    const int distributions[] = {MPI_DISTRIBUTE_CYCLIC, MPI_DISTRIBUTE_BLOCK};
    const int arguments[] = {2, MPI_DISTRIBUTE_DFLT_DARG}, grid[] = {2, 2};
    const struct type *element = integer();
    struct type *mine = rank < 4 ? darray_of(4, rank, 2, sizes, distributions, arguments, grid, MPI_ORDER_C, element)
                                 : contiguous_of(1, element);
    int count = rank < 4 ? (int)(mine->map.bytes / 4) : 0, values[143], all[143];
    say("whole array", mine);
    for (int i = 0; i < count; i++) values[i] = (int)(nth_byte(&mine->map, i * 4) / 4) + 1;
    MUST(MPI_File_set_view(file, 0, MPI_INT, mine->mpi, "native", MPI_INFO_NULL));
    MUST(MPI_File_write_all(file, values, count, MPI_INT, MPI_STATUS_IGNORE));
    MUST(MPI_File_sync(file));
    barrier();
    bytes_view();
    MUST(MPI_File_read_at(file, 0, all, 143, MPI_INT, MPI_STATUS_IGNORE));
    for (int i = 0; i < 143; i++) EQUAL(all[i], i + 1);
    barrier();
}

/* A rank whose share of the array is empty takes part with nothing. */
static void run_empty_share(void) {
    if (size < 4) return;
    const int64_t sizes[] = {3};
    const int distributions[] = {MPI_DISTRIBUTE_BLOCK}, arguments[] = {MPI_DISTRIBUTE_DFLT_DARG}, grid[] = {4};
    const struct type *element = integer();
    struct type *mine = rank < 4 ? darray_of(4, rank, 1, sizes, distributions, arguments, grid, MPI_ORDER_C, element)
                                 : contiguous_of(0, element);
    int has_some = rank < 3, value = rank + 40, all[3];
    say("empty share", mine);
    EQUAL(mine->map.bytes, has_some * 4);
    MUST(MPI_File_set_view(file, 0, MPI_INT, mine->mpi, "native", MPI_INFO_NULL));
    MUST(MPI_File_write_all(file, &value, has_some, MPI_INT, MPI_STATUS_IGNORE));
    MUST(MPI_File_sync(file));
    barrier();
    bytes_view();
    MUST(MPI_File_read_at_all(file, 0, all, 3, MPI_INT, MPI_STATUS_IGNORE));
    for (int i = 0; i < 3; i++) EQUAL(all[i], i + 40);
    barrier();
}

static void run_resized(void) {
    const struct type *element = integer();
    use(resized_of(0, 16, element), element);
    use(resized_of(0, 64, vector_of(3, 1, 2, element)), element); /* a gap at the end */
    use(resized_of(-8, 24, element), element);                    /* and one at the front */
    use(resized_of(4, 4, hindexed_block_of(1, 1, (const int64_t[]){4}, element)), element);
    use(vector_of(3, 2, 2, resized_of(-4, 12, element)), element);
    use(contiguous_of(4, resized_of(0, 12, vector_of(2, 1, 2, element))), element);
    /* Items closer to each other than they are long, woven into each other. */
    use(resized_of(0, 4, vector_of(3, 1, 10, element)), element);
}

/* ROMIO once misread the view of an array of indexed pieces. */
static void run_nested(void) {
    struct type *element = (struct type *)integer();
    const int64_t sizes[] = {4, 6}, parts[] = {2, 3}, starts[] = {1, 1};
    struct type *array = subarray_of(2, sizes, parts, starts, MPI_ORDER_C, element);
    const int64_t ones[] = {1, 2, 1}, places[] = {0, 2, 5};
    use(indexed_of(3, ones, places, array), element);
    const int64_t bytes[] = {8, 200, 600};
    use(hindexed_of(3, ones, bytes, array), element);
    struct type *parts_of_all[] = {array, element, vector_of(3, 1, 3, dup_of(array))};
    const int64_t apart[] = {0, 100, 120};
    use(resized_of(0, 800, struct_of(3, (const int64_t[]){1, 2, 1}, apart, parts_of_all)), element);
    use(hvector_of(2, 1, 1000, contiguous_of(2, indexed_of(3, ones, places, resized_of(0, 12, element)))), element);
    use(subarray_of(2, sizes, parts, starts, MPI_ORDER_FORTRAN, indexed_of(2, ones, places, element)), element);
    use(contiguous_of(2, contiguous_of(2, contiguous_of(2, vector_of(2, 1, 2, contiguous_of(2, element))))), element);
}

/* What only memory may be: places in any order, backwards, the same bytes twice (to write from). MPI libraries round an
 * odd extent as they like, so those types get one. */
static void run_only_memory(void) {
    const struct type *element = integer();
    const int64_t falling[] = {9, 4, 0, -3}, ones[] = {1, 2, 1, 1}, falling_bytes[] = {50, 21, 3, -70};
    use(vector_of(4, 2, -3, element), NULL);
    use(resized_of(-27, 40, hvector_of(4, 1, -9, element)), NULL);
    use(indexed_of(4, ones, falling, element), NULL);
    use(resized_of(-70, 128, hindexed_of(4, ones, falling_bytes, element)), NULL);
    use(indexed_block_of(4, 1, falling, element), NULL);
    use(resized_of(-70, 124, hindexed_block_of(4, 1, falling_bytes, element)), NULL);
    use(resized_of(-40, 40, hindexed_block_of(1, 1, (const int64_t[]){-40}, element)), NULL);
    struct type *backwards = resized_of(0, -4, element);
    if (extent_of(&backwards->map) == -4) use(backwards, NULL);

    const struct type *twice = vector_of(3, 2, 1, element);
    int values[4] = {10, 11, 12, 13}, got[6];
    bytes_view();
    say("written twice", twice);
    MUST(MPI_File_write_at(file, my_region(), values, 1, twice->mpi, MPI_STATUS_IGNORE));
    MUST(MPI_File_read_at(file, my_region(), got, 6, MPI_INT, MPI_STATUS_IGNORE));
    static const int should[] = {10, 11, 11, 12, 12, 13};
    for (int i = 0; i < 6; i++) EQUAL(got[i], should[i]);
}

/* Types that hold addresses, with MPI_BOTTOM as the buffer. */
static void run_absolute(void) {
    int values[10], got[10] = {0};
    double real = 0.5, got_real = 0;
    MPI_Aint at[3];
    int blocks[] = {3, 4, 1};
    MPI_Datatype parts[] = {MPI_INT, MPI_INT, MPI_DOUBLE}, from, to;
    for (int i = 0; i < 10; i++) values[i] = rank * 100 + i;
    MUST(MPI_Get_address(&values[6], &at[0]));
    MUST(MPI_Get_address(&values[0], &at[1]));
    MUST(MPI_Get_address(&real, &at[2]));
    MUST(MPI_Type_create_struct(3, blocks, at, parts, &from));
    MUST(MPI_Get_address(&got[6], &at[0]));
    MUST(MPI_Get_address(&got[0], &at[1]));
    MUST(MPI_Get_address(&got_real, &at[2]));
    MUST(MPI_Type_create_struct(3, blocks, at, parts, &to));
    MUST(MPI_Type_commit(&from));
    MUST(MPI_Type_commit(&to));
    bytes_view();
    for (int collective = 0; collective < 2; collective++) {
        MPI_Status status;
        MPI_Offset place = my_region() + collective * 1000;
        if (collective) MUST(MPI_File_write_at_all(file, place, MPI_BOTTOM, 1, from, &status));
        else MUST(MPI_File_write_at(file, place, MPI_BOTTOM, 1, from, &status));
        COUNTS(&status, MPI_BYTE, 36);
        int raw[7];
        MUST(MPI_File_read_at(file, place, raw, 7, MPI_INT, MPI_STATUS_IGNORE));
        for (int i = 0; i < 7; i++) EQUAL(raw[i], rank * 100 + (i < 3 ? 6 + i : i - 3));
        memset(got, 0, sizeof got);
        if (collective) MUST(MPI_File_read_at_all(file, place, MPI_BOTTOM, 1, to, &status));
        else MUST(MPI_File_read_at(file, place, MPI_BOTTOM, 1, to, &status));
        COUNTS(&status, to, 1);
        for (int i = 0; i < 10; i++) EQUAL(got[i], i == 4 || i == 5 || i == 9 ? 0 : values[i]);
        CHECK(got_real == 0.5);
    }
    MUST(MPI_Type_free(&from));
    MUST(MPI_Type_free(&to));
}

/* Elements of the view that are more than a byte and more than a number. */
static void run_large_elements(void) {
    struct type *integer_type = (struct type *)integer();
    struct type *triple = contiguous_of(3, integer_type);
    use(vector_of(3, 2, 4, triple), triple);
    use(triple, triple);
    struct type *with_gap = resized_of(0, 12, vector_of(2, 1, 2, integer_type));
    use(with_gap, with_gap);
    use(indexed_block_of(3, 2, (const int64_t[]){1, 4, 9}, with_gap), with_gap);
    struct type *parts[] = {plain(MPI_DOUBLE, 8, "double"), integer_type};
    struct type *record = resized_of(0, 16, struct_of(2, (const int64_t[]){1, 1}, (const int64_t[]){0, 8}, parts));
    use(record, record);
    use(vector_of(4, 1, 3, record), record);
    use(subarray_of(2, (const int64_t[]){4, 5}, (const int64_t[]){2, 2}, (const int64_t[]){1, 3}, MPI_ORDER_C, record),
        record);
}

/* Views that begin far out, where offsets need more than 32 bits. */
static void run_far_out(void) {
    const struct type *element = integer(), *vector = vector_of(2, 1, 3, element);
    MPI_Offset far = ((MPI_Offset)5 << 30) + rank * 400 + 1, at;
    int values[20], got[20];
    say("far out", vector);
    for (int i = 0; i < 20; i++) values[i] = rank * 20 + i;
    MUST(MPI_File_set_view(file, far, MPI_INT, vector->mpi, "native", MPI_INFO_NULL));
    MUST(MPI_File_write_all(file, values, 20, MPI_INT, MPI_STATUS_IGNORE));
    MUST(MPI_File_get_byte_offset(file, 3, &at));
    EQUAL(at, far + 28);
    MUST(MPI_File_read_at(file, 0, got, 20, MPI_INT, MPI_STATUS_IGNORE));
    SAME(got, values, sizeof got);
    bytes_view();
    MUST(MPI_File_read_at(file, far + 28, got, 1, MPI_INT, MPI_STATUS_IGNORE));
    EQUAL(got[0], values[3]);
    /* A type whose pieces are far from each other. */
    struct type *wide = hvector_of(2, 1, (int64_t)3 << 30, element);
    MUST(MPI_File_set_view(file, rank * 4, MPI_INT, wide->mpi, "native", MPI_INFO_NULL));
    MUST(MPI_File_write_at_all(file, 0, values, 2, MPI_INT, MPI_STATUS_IGNORE));
    MUST(MPI_File_read_at_all(file, 0, got, 2, MPI_INT, MPI_STATUS_IGNORE));
    SAME(got, values, 8);
    bytes_view();
    MUST(MPI_File_read_at(file, ((MPI_Offset)3 << 30) + rank * 4, got, 1, MPI_INT, MPI_STATUS_IGNORE));
    EQUAL(got[0], values[1]);
    barrier();
    MUST(MPI_File_set_size(file, 0)); /* so that nothing far out is left behind for other cases */
}

/* Types that are freed between their use as a view and the access, and made again. */
static void run_freed(void) {
    for (int i = 0; i < 20; i++) {
        MPI_Datatype view, memory;
        int values[4] = {i, i + 1, i + 2, i + 3}, got[4], raw[12];
        MUST(MPI_Type_vector(2, 1, 1 + i % 3, MPI_INT, &view));
        MUST(MPI_Type_commit(&view));
        MUST(MPI_File_set_view(file, my_region(), MPI_INT, view, "native", MPI_INFO_NULL));
        MUST(MPI_Type_free(&view));
        MUST(MPI_Type_contiguous(2, MPI_INT, &memory));
        MUST(MPI_Type_commit(&memory));
        MPI_Request request;
        MUST(MPI_File_iwrite_at(file, 0, values, 2, memory, &request));
        MUST(MPI_Type_free(&memory));
        MUST(MPI_Wait(&request, MPI_STATUS_IGNORE));
        MUST(MPI_File_read_at_all(file, 0, got, 4, MPI_INT, MPI_STATUS_IGNORE));
        SAME(got, values, sizeof got);
        bytes_view();
        MUST(MPI_File_read_at(file, my_region(), raw, 12, MPI_INT, MPI_STATUS_IGNORE));
        EQUAL(raw[1 + i % 3], i + 1);
    }
}

#define CASE(name) \
    static void name(void) { with_both_counts(run_##name); }
CASE(named)
CASE(pairs)
CASE(fortran)
CASE(simple)
CASE(indexed)
CASE(structures)
CASE(arrays)
CASE(distributed_arrays)
CASE(whole_array)
CASE(empty_share)
CASE(resized)
CASE(nested)
CASE(only_memory)
CASE(absolute)
CASE(large_elements)
CASE(far_out)
CASE(freed)
#undef CASE

#define CASE(name) {#name, name}
RUN(MPI_THREAD_SINGLE, CASE(named), CASE(pairs), CASE(fortran), CASE(simple), CASE(indexed), CASE(structures),
    CASE(arrays), CASE(distributed_arrays), CASE(whole_array), CASE(empty_share), CASE(resized), CASE(nested), CASE(only_memory),
    CASE(absolute), CASE(large_elements), CASE(far_out), CASE(freed))
