/* Datatypes of random construction. A seed repeats them. */
#ifndef WEFT_MPI_RANDOMTYPES_H
#define WEFT_MPI_RANDOMTYPES_H

#include "typemap.h"

struct random {
    uint64_t state;
};

/* splitmix64 (Steele, Lea, Flood, 2014), as the random tests in Rust have it. */
static uint64_t next_random(struct random *random) {
    uint64_t mixed = random->state += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return mixed ^ mixed >> 31;
}

static int below(struct random *random, int bound) { return bound > 0 ? (int)(next_random(random) % (uint64_t)bound) : 0; }

static int between(struct random *random, int low, int high) { return low + below(random, high - low + 1); }

static UNUSED int one_in(struct random *random, int times) { return below(random, times) == 0; }

/* What a tree of types may be. */
struct shape {
    int is_view;         /* places only grow, none is negative */
    int64_t unit;        /* places in bytes are multiples of it */
    int64_t bytes_max;   /* of one item */
    int64_t extent_max;
};

static int fits(const struct type *type, const struct shape *shape) {
    return type->map.bytes > 0 && type->map.bytes <= shape->bytes_max && extent_of(&type->map) > 0 &&
           extent_of(&type->map) <= shape->extent_max && (!shape->is_view || is_view(&type->map));
}

/* Turns a list around or about, the same way for both. */
static void shuffle(struct random *random, int count, int64_t *first, int64_t *second) {
    for (int i = count - 1; i > 0; i--) {
        int other = below(random, i + 1);
        int64_t kept = first[i], also = second[i];
        first[i] = first[other], second[i] = second[other];
        first[other] = kept, second[other] = also;
    }
}

/* Blocks of random lengths with random gaps between them; places in units of `step`. */
static int random_blocks(struct random *random, const struct shape *shape, int64_t step, int gap_max, int64_t *blocks,
                         int64_t *places, int same_length, int64_t block_step) {
    int count = between(random, 1, 5), length = between(random, 1, 3);
    int64_t at = below(random, gap_max + 1) - (shape->is_view ? 0 : below(random, 3));
    for (int i = 0; i < count; i++) {
        blocks[i] = same_length ? length : between(random, 0, 3);
        places[i] = at * step;
        at += blocks[i] * block_step / step + below(random, gap_max + 1);
    }
    if (!shape->is_view && one_in(random, 2)) shuffle(random, count, blocks, places);
    return count;
}

static struct type *random_array(struct random *random, const struct type *of) {
    int dimensions = between(random, 1, 3), order = one_in(random, 2) ? MPI_ORDER_C : MPI_ORDER_FORTRAN;
    int64_t sizes[3], parts[3], starts[3];
    for (int i = 0; i < dimensions; i++) {
        sizes[i] = between(random, 1, 5);
        parts[i] = between(random, 1, (int)sizes[i]);
        starts[i] = below(random, (int)(sizes[i] - parts[i] + 1));
    }
    return subarray_of(dimensions, sizes, parts, starts, order, of);
}

/* The share of one of `processes` in an array that is dealt out among them. */
static struct type *random_share(struct random *random, int processes, int process, const struct type *of) {
    int dimensions = between(random, 1, 3), order = one_in(random, 2) ? MPI_ORDER_C : MPI_ORDER_FORTRAN;
    int distributions[3], arguments[3], grid[3], rest = processes;
    int64_t sizes[3];
    for (int i = 0; i < dimensions; i++) {
        int part = i == dimensions - 1 ? rest : rest % 2 == 0 && one_in(random, 2) ? 2 : 1;
        rest /= part;
        grid[i] = part;
        sizes[i] = between(random, part, 7 + part);
        int kind = below(random, part == 1 ? 3 : 2);
        distributions[i] = kind == 0   ? MPI_DISTRIBUTE_BLOCK
                           : kind == 1 ? MPI_DISTRIBUTE_CYCLIC
                                       : MPI_DISTRIBUTE_NONE;
        arguments[i] = MPI_DISTRIBUTE_DFLT_DARG;
        if (kind == 1 && one_in(random, 2)) arguments[i] = between(random, 1, 3);
    }
    return darray_of(processes, process, dimensions, sizes, distributions, arguments, grid, order, of);
}

static struct type *random_type(struct random *random, const struct shape *shape, struct type *leaf, int depth);

static struct type *random_struct(struct random *random, const struct shape *shape, struct type *leaf, int depth) {
    struct type *parts[3];
    int64_t blocks[3], places[3], at = 0;
    int count = between(random, 1, 3);
    for (int i = 0; i < count; i++) {
        parts[i] = random_type(random, shape, leaf, depth);
        blocks[i] = between(random, 1, 2);
        int64_t low = parts[i]->map.lower;
        at += below(random, 3) * shape->unit;
        places[i] = at - low;
        if (places[i] < 0 && shape->is_view) at -= places[i], places[i] = 0;
        at += blocks[i] * extent_of(&parts[i]->map);
        for (int j = 0; j < parts[i]->map.count; j++) {
            const struct piece *piece = &parts[i]->map.pieces[j];
            int64_t over = piece->at + piece->bytes - parts[i]->map.upper;
            if (over > 0) at += (over + shape->unit - 1) / shape->unit * shape->unit;
        }
        at = (at + shape->unit - 1) / shape->unit * shape->unit;
    }
    struct type *type = resized_of(0, at + below(random, 3) * shape->unit, struct_of(count, blocks, places, parts));
    return fits(type, shape) ? type : leaf;
}

/* A tree of types over `leaf`, which is itself one as the shape says. */
static struct type *random_type(struct random *random, const struct shape *shape, struct type *leaf, int depth) {
    if (depth == 0 || pieces_made_count > TYPES_MAX - 40 || types_made_count > TYPES_MAX - 40) return leaf;
    int64_t blocks[8], places[8];
    int kind = below(random, 13), count, many = between(random, 1, 4), block = between(random, 1, 3);
    if (kind == 0 && shape->is_view && is_left_out("structs")) kind = 1;
    if (kind == 0) return random_struct(random, shape, leaf, depth - 1);
    struct type *of = random_type(random, shape, leaf, depth - 1), *type;
    int64_t extent = extent_of(&of->map), gap = below(random, 4);
    switch (kind) {
    case 1: type = dup_of(of); break;
    case 2: type = contiguous_of(many, of); break;
    case 3: {
        int stride = block + (int)gap;
        type = vector_of(many, block, !shape->is_view && one_in(random, 3) ? -stride : stride, of);
        break;
    }
    case 4: {
        int64_t stride = block * extent + gap * shape->unit;
        type = hvector_of(many, block, !shape->is_view && one_in(random, 3) ? -stride : stride, of);
        break;
    }
    case 5:
        count = random_blocks(random, shape, 1, 3, blocks, places, 0, 1);
        type = indexed_of(count, blocks, places, of);
        break;
    case 6:
        if (extent % shape->unit) return of;
        count = random_blocks(random, shape, shape->unit, 5, blocks, places, 0, extent);
        type = hindexed_of(count, blocks, places, of);
        break;
    case 7:
        count = random_blocks(random, shape, 1, 3, blocks, places, 1, 1);
        type = indexed_block_of(count, (int)blocks[0], places, of);
        break;
    case 8:
        if (extent % shape->unit) return of;
        count = random_blocks(random, shape, shape->unit, 5, blocks, places, 1, extent);
        type = hindexed_block_of(count, (int)blocks[0], places, of);
        break;
    case 9: type = random_array(random, of); break;
    case 10: {
        int processes = between(random, 1, 6);
        type = random_share(random, processes, below(random, processes), of);
        break;
    }
    case 11: type = resized_of(of->map.lower, extent + gap * shape->unit, of); break;
    default: type = contiguous_of(1, of); break;
    }
    return fits(type, shape) ? type : of;
}

#endif
