/* Datatypes together with what they mean, byte by byte, found out without MPI.
 *
 * Each builder makes the MPI datatype and its map: the pieces of memory or of the file that it names, in their order.
 * The maps are composed here by the rules of the standard (datatypes, "type map", lower and upper bound); no question
 * about them goes to the MPI library, so that both can be compared.
 *
 *   vector_of(2, 1, 3, &integer)   pieces (0, 4), (12, 4); from 0 to 16 */
#ifndef WEFT_MPI_TYPEMAP_H
#define WEFT_MPI_TYPEMAP_H

#include "check.h"

struct piece {
    int64_t at, bytes;
    int64_t before; /* bytes of the pieces before it */
};

struct map {
    struct piece *pieces;
    int count, room;
    int64_t bytes, lower, upper;
    int is_empty; /* nothing was placed so far: no bounds */
};

struct type {
    MPI_Datatype mpi;
    struct map map;
    char text[160];
};

enum { TYPES_MAX = 4096, ITEMS_MAX = 64 };

static MPI_Datatype types_made[TYPES_MAX];
static struct piece *pieces_made[TYPES_MAX];
static int types_made_count, pieces_made_count;
/* Make maps only: the datatypes are those of another rank. */
static UNUSED int only_maps;
/* Make datatypes by the calls with large counts, where there are any. */
static UNUSED int by_large_counts;

static UNUSED int64_t extent_of(const struct map *map) { return map->upper - map->lower; }

/* Frees what all builders have made. */
static UNUSED void free_types(void) {
    for (int i = 0; i < types_made_count; i++) MUST(MPI_Type_free(&types_made[i]));
    for (int i = 0; i < pieces_made_count; i++) free(pieces_made[i]);
    types_made_count = pieces_made_count = 0;
}

static void add_piece(struct map *map, int64_t at, int64_t bytes) {
    if (bytes == 0) return;
    struct piece *last = map->count ? &map->pieces[map->count - 1] : NULL;
    if (last && last->at + last->bytes == at) {
        last->bytes += bytes;
    } else {
        if (map->count == map->room) {
            map->room = map->room ? 2 * map->room : 8;
            map->pieces = realloc(map->pieces, (size_t)map->room * sizeof *map->pieces);
            CHECK(map->pieces != NULL);
        }
        map->pieces[map->count++] = (struct piece){at, bytes, map->bytes};
    }
    map->bytes += bytes;
}

/* Adds a copy of another map, moved by so many bytes. */
static void place_copy(struct map *map, const struct map *part, int64_t move) {
    for (int i = 0; i < part->count; i++) add_piece(map, part->pieces[i].at + move, part->pieces[i].bytes);
    if (map->is_empty || part->lower + move < map->lower) map->lower = part->lower + move;
    if (map->is_empty || part->upper + move > map->upper) map->upper = part->upper + move;
    map->is_empty = 0;
}

/* `copies` one behind the other, the first one moved by so many bytes. */
static void place_block(struct map *map, const struct map *part, int64_t move, int64_t copies) {
    for (int64_t i = 0; i < copies; i++) place_copy(map, part, move + i * extent_of(part));
}

static struct map empty_map(void) { return (struct map){.is_empty = 1}; }

static struct type *finished(struct type *type) {
    CHECK(pieces_made_count < TYPES_MAX);
    pieces_made[pieces_made_count++] = type->map.pieces;
    if (!only_maps) {
        MUST(MPI_Type_commit(&type->mpi));
        CHECK(types_made_count < TYPES_MAX);
        types_made[types_made_count++] = type->mpi;
    }
    return type;
}

static struct type *new_type(const char *format, ...) {
    static struct type types[TYPES_MAX];
    CHECK(pieces_made_count < TYPES_MAX);
    struct type *type = &types[pieces_made_count];
    *type = (struct type){.mpi = MPI_DATATYPE_NULL, .map = empty_map()};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(type->text, sizeof type->text, format, arguments);
    va_end(arguments);
    return type;
}

#if HAS_LARGE_COUNTS
#define MAKE(call, large) \
    do { \
        if (only_maps) break; \
        if (by_large_counts) MUST(large); \
        else MUST(call); \
    } while (0)
#else
#define MAKE(call, large) \
    do { \
        if (!only_maps) MUST(call); \
    } while (0)
#endif

/* Copies of a list of numbers, in the widths that the calls want. */
struct numbers {
    int ints[ITEMS_MAX];
    MPI_Aint addresses[ITEMS_MAX];
    MPI_Count counts[ITEMS_MAX];
};

static struct numbers numbers_of(int count, const int64_t *values) {
    struct numbers numbers;
    CHECK(count <= ITEMS_MAX);
    for (int i = 0; i < count; i++) {
        numbers.ints[i] = (int)values[i];
        numbers.addresses[i] = (MPI_Aint)values[i];
        numbers.counts[i] = (MPI_Count)values[i];
    }
    return numbers;
}

/* A type that MPI names, of one piece. */
static UNUSED struct type *plain(MPI_Datatype named, int64_t bytes, const char *text) {
    struct type *type = new_type("%s", text);
    add_piece(&type->map, 0, bytes);
    type->map.upper = bytes;
    type->map.is_empty = 0;
    type->mpi = named;
    pieces_made[pieces_made_count++] = type->map.pieces;
    return type;
}

/* A pair that MPI names. */
static UNUSED struct type *pair(MPI_Datatype named, int64_t first, int64_t second_at, int64_t second,
                                int64_t extent, const char *text) {
    struct type *type = new_type("%s", text);
    add_piece(&type->map, 0, first);
    add_piece(&type->map, second_at, second);
    type->map.upper = extent;
    type->map.is_empty = 0;
    type->mpi = named;
    pieces_made[pieces_made_count++] = type->map.pieces;
    return type;
}

static UNUSED struct type *dup_of(const struct type *of) {
    struct type *type = new_type("dup(%s)", of->text);
    place_copy(&type->map, &of->map, 0);
    MAKE(MPI_Type_dup(of->mpi, &type->mpi), MPI_Type_dup(of->mpi, &type->mpi));
    return finished(type);
}

static UNUSED struct type *contiguous_of(int count, const struct type *of) {
    struct type *type = new_type("contiguous(%d, %s)", count, of->text);
    place_block(&type->map, &of->map, 0, count);
    MAKE(MPI_Type_contiguous(count, of->mpi, &type->mpi), MPI_Type_contiguous_c(count, of->mpi, &type->mpi));
    return finished(type);
}

static UNUSED struct type *vector_of(int count, int block, int stride, const struct type *of) {
    struct type *type = new_type("vector(%d, %d, %d, %s)", count, block, stride, of->text);
    for (int i = 0; i < count; i++) place_block(&type->map, &of->map, i * (stride * extent_of(&of->map)), block);
    MAKE(MPI_Type_vector(count, block, stride, of->mpi, &type->mpi),
         MPI_Type_vector_c(count, block, stride, of->mpi, &type->mpi));
    return finished(type);
}

static UNUSED struct type *hvector_of(int count, int block, int64_t stride, const struct type *of) {
    struct type *type = new_type("hvector(%d, %d, %lld, %s)", count, block, (long long)stride, of->text);
    for (int i = 0; i < count; i++) place_block(&type->map, &of->map, i * stride, block);
    MAKE(MPI_Type_create_hvector(count, block, (MPI_Aint)stride, of->mpi, &type->mpi),
         MPI_Type_create_hvector_c(count, block, (MPI_Count)stride, of->mpi, &type->mpi));
    return finished(type);
}

static UNUSED struct type *indexed_of(int count, const int64_t *blocks, const int64_t *places,
                                      const struct type *of) {
    struct type *type = new_type("indexed(%d, %s)", count, of->text);
    struct numbers lengths = numbers_of(count, blocks), starts = numbers_of(count, places);
    for (int i = 0; i < count; i++)
        place_block(&type->map, &of->map, places[i] * extent_of(&of->map), blocks[i]);
    MAKE(MPI_Type_indexed(count, lengths.ints, starts.ints, of->mpi, &type->mpi),
         MPI_Type_indexed_c(count, lengths.counts, starts.counts, of->mpi, &type->mpi));
    return finished(type);
}

static UNUSED struct type *hindexed_of(int count, const int64_t *blocks, const int64_t *places,
                                       const struct type *of) {
    struct type *type = new_type("hindexed(%d, %s)", count, of->text);
    struct numbers lengths = numbers_of(count, blocks), starts = numbers_of(count, places);
    for (int i = 0; i < count; i++) place_block(&type->map, &of->map, places[i], blocks[i]);
    MAKE(MPI_Type_create_hindexed(count, lengths.ints, starts.addresses, of->mpi, &type->mpi),
         MPI_Type_create_hindexed_c(count, lengths.counts, starts.counts, of->mpi, &type->mpi));
    return finished(type);
}

static UNUSED struct type *indexed_block_of(int count, int block, const int64_t *places, const struct type *of) {
    struct type *type = new_type("indexed_block(%d, %d, %s)", count, block, of->text);
    struct numbers starts = numbers_of(count, places);
    for (int i = 0; i < count; i++) place_block(&type->map, &of->map, places[i] * extent_of(&of->map), block);
    MAKE(MPI_Type_create_indexed_block(count, block, starts.ints, of->mpi, &type->mpi),
         MPI_Type_create_indexed_block_c(count, block, starts.counts, of->mpi, &type->mpi));
    return finished(type);
}

static UNUSED struct type *hindexed_block_of(int count, int block, const int64_t *places, const struct type *of) {
    struct type *type = new_type("hindexed_block(%d, %d, %s)", count, block, of->text);
    struct numbers starts = numbers_of(count, places);
    for (int i = 0; i < count; i++) place_block(&type->map, &of->map, places[i], block);
    MAKE(MPI_Type_create_hindexed_block(count, block, starts.addresses, of->mpi, &type->mpi),
         MPI_Type_create_hindexed_block_c(count, block, starts.counts, of->mpi, &type->mpi));
    return finished(type);
}

/* Bounds that a structure has by alignment, or by parts with bounds of their own, are not modelled: give it some by
 * `resized_of`. */
static UNUSED struct type *struct_of(int count, const int64_t *blocks, const int64_t *places,
                                     struct type *const *of) {
    struct type *type = new_type("struct(%d, %s, ...)", count, count ? of[0]->text : "");
    struct numbers lengths = numbers_of(count, blocks), starts = numbers_of(count, places);
    MPI_Datatype parts[ITEMS_MAX];
    for (int i = 0; i < count; i++) {
        parts[i] = of[i]->mpi;
        place_block(&type->map, &of[i]->map, places[i], blocks[i]);
    }
    MAKE(MPI_Type_create_struct(count, lengths.ints, starts.addresses, parts, &type->mpi),
         MPI_Type_create_struct_c(count, lengths.counts, starts.counts, parts, &type->mpi));
    return finished(type);
}

static UNUSED struct type *resized_of(int64_t lower, int64_t extent, const struct type *of) {
    struct type *type = new_type("resized(%lld, %lld, %s)", (long long)lower, (long long)extent, of->text);
    place_copy(&type->map, &of->map, 0);
    type->map.lower = lower;
    type->map.upper = lower + extent;
    MAKE(MPI_Type_create_resized(of->mpi, (MPI_Aint)lower, (MPI_Aint)extent, &type->mpi),
         MPI_Type_create_resized_c(of->mpi, (MPI_Count)lower, (MPI_Count)extent, &type->mpi));
    return finished(type);
}

/* Places all elements of an array whose index in each dimension is in that dimension's list. */
static void place_elements(struct map *map, const struct map *of, int dimensions, const int64_t *sizes, int order,
                           const int *counts, int64_t lists[][ITEMS_MAX]) {
    int at[8] = {0};
    int64_t elements = 1, chosen = 1;
    for (int i = 0; i < dimensions; i++) elements *= sizes[i], chosen *= counts[i];
    for (int64_t i = 0; i < chosen; i++) {
        int64_t index = 0;
        for (int j = 0; j < dimensions; j++) {
            int dimension = order == MPI_ORDER_C ? j : dimensions - 1 - j;
            index = index * sizes[dimension] + lists[dimension][at[dimension]];
        }
        place_copy(map, of, index * extent_of(of));
        for (int j = dimensions - 1; j >= 0; j--) { /* the next element, the fastest dimension first */
            int dimension = order == MPI_ORDER_C ? j : dimensions - 1 - j;
            if (++at[dimension] < counts[dimension]) break;
            at[dimension] = 0;
        }
    }
    map->lower = 0;
    map->upper = elements * extent_of(of);
    map->is_empty = 0;
}

static UNUSED struct type *subarray_of(int dimensions, const int64_t *sizes, const int64_t *parts,
                                       const int64_t *starts, int order, const struct type *of) {
    struct type *type = new_type("subarray(%d, %s, %s)", dimensions, order == MPI_ORDER_C ? "C" : "F", of->text);
    struct numbers all = numbers_of(dimensions, sizes), part = numbers_of(dimensions, parts);
    struct numbers start = numbers_of(dimensions, starts);
    int64_t lists[8][ITEMS_MAX];
    for (int i = 0; i < dimensions; i++)
        for (int j = 0; j < part.ints[i]; j++) lists[i][j] = starts[i] + j;
    place_elements(&type->map, &of->map, dimensions, sizes, order, part.ints, lists);
    MAKE(MPI_Type_create_subarray(dimensions, all.ints, part.ints, start.ints, order, of->mpi, &type->mpi),
         MPI_Type_create_subarray_c(dimensions, all.counts, part.counts, start.counts, order, of->mpi, &type->mpi));
    return finished(type);
}

/* The indices of one dimension that belong to one coordinate of the process grid. */
static int owned_indices(int64_t elements, int distribution, int argument, int processes, int coordinate,
                         int64_t *list) {
    int count = 0;
    int64_t block = argument;
    if (distribution == MPI_DISTRIBUTE_NONE) block = elements;
    else if (argument == MPI_DISTRIBUTE_DFLT_DARG)
        block = distribution == MPI_DISTRIBUTE_BLOCK ? (elements + processes - 1) / processes : 1;
    for (int64_t i = 0; i < elements; i++)
        if (i / block % processes == coordinate) list[count++] = i;
    return count;
}

static UNUSED struct type *darray_of(int processes, int process, int dimensions, const int64_t *sizes,
                                     const int *distributions, const int *arguments, const int *grid, int order,
                                     const struct type *of) {
    struct type *type = new_type("darray(%d of %d, %d, %s, %s)", process, processes, dimensions,
                                 order == MPI_ORDER_C ? "C" : "F", of->text);
    struct numbers all = numbers_of(dimensions, sizes);
    int64_t lists[8][ITEMS_MAX];
    int counts[8], rest = process;
    for (int i = dimensions - 1; i >= 0; i--) { /* the grid is in row-major order, whatever the array's */
        counts[i] = owned_indices(sizes[i], distributions[i], arguments[i], grid[i], rest % grid[i], lists[i]);
        rest /= grid[i];
    }
    place_elements(&type->map, &of->map, dimensions, sizes, order, counts, lists);
    MAKE(MPI_Type_create_darray(processes, process, dimensions, all.ints, distributions, arguments, grid, order,
                                of->mpi, &type->mpi),
         MPI_Type_create_darray_c(processes, process, dimensions, all.counts, distributions, arguments, grid, order,
                                  of->mpi, &type->mpi));
    return finished(type);
}

/* Where the byte with this number is, if copies of the map follow each other. */
static UNUSED int64_t nth_byte(const struct map *map, int64_t number) {
    int64_t copy = number / map->bytes, rest = number % map->bytes;
    int low = 0, high = map->count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (map->pieces[middle].before <= rest) low = middle;
        else high = middle - 1;
    }
    return copy * extent_of(map) + map->pieces[low].at + rest - map->pieces[low].before;
}

/* Whether it may be a file's view: places grow, none is negative, nothing lies twice on a byte. */
static UNUSED int is_view(const struct map *map) {
    if (map->bytes == 0 || map->pieces[0].at < 0 || extent_of(map) <= 0) return 0;
    for (int i = 1; i < map->count; i++)
        if (map->pieces[i].at < map->pieces[i - 1].at + map->pieces[i - 1].bytes) return 0;
    const struct piece *last = &map->pieces[map->count - 1];
    return last->at + last->bytes <= extent_of(map) + map->pieces[0].at;
}

/* Memory for so many items of a type: `start` is what a call gets, the bytes begin at `low` from it. */
struct memory {
    unsigned char *all;
    unsigned char *start;
    int64_t low, bytes;
};

static UNUSED struct memory memory_for(const struct map *map, int64_t count) {
    int64_t low = 0, high = 0;
    for (int64_t item = 0; item < count; item += count > 1 ? count - 1 : 1)
        for (int i = 0; i < map->count; i++) {
            int64_t at = map->pieces[i].at + item * extent_of(map);
            if (at < low) low = at;
            if (at + map->pieces[i].bytes > high) high = at + map->pieces[i].bytes;
        }
    struct memory memory = {.low = low, .bytes = high - low + 32};
    memory.all = allocate((size_t)memory.bytes);
    memory.start = memory.all - low;
    return memory;
}

/* MPI packs by the same map: it is right, whatever reading and writing do. */
static UNUSED void check_map(const struct type *type) {
    enum { ITEMS = 3 };
    const struct map *map = &type->map;
    struct memory memory = memory_for(map, ITEMS);
    MPI_Aint lower, extent;
    int bytes = 0, packed = 0;
    MUST(MPI_Type_get_extent(type->mpi, &lower, &extent));
    EQUAL(extent, extent_of(map));
    EQUAL(lower, map->lower);
    fill(memory.all, 0, (size_t)memory.bytes, 6);
    MUST(MPI_Type_size(type->mpi, &bytes));
    EQUAL(bytes, map->bytes);
    MUST(MPI_Pack_size(ITEMS, type->mpi, MPI_COMM_SELF, &bytes));
    unsigned char *is = allocate((size_t)bytes), *should = allocate((size_t)bytes);
    MUST(MPI_Pack(memory.start, ITEMS, type->mpi, is, bytes, &packed, MPI_COMM_SELF));
    EQUAL(packed, ITEMS * map->bytes);
    for (int64_t i = 0; i < packed; i++) should[i] = memory.start[nth_byte(map, i)];
    SAME(is, should, packed);
    free(is);
    free(should);
    free(memory.all);
}

#endif
