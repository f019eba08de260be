/* What the measurements of MPI-IO share: time that all processes agree on, data, access patterns. */
#ifndef WEFT_BENCH_MPI_H
#define WEFT_BENCH_MPI_H

#define _GNU_SOURCE
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int rank, size;

#define MUST(condition, ...) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "rank %d: %s:%d: ", rank, __FILE__, __LINE__); \
            fprintf(stderr, __VA_ARGS__); \
            fprintf(stderr, "\n"); \
            fflush(stderr); \
            MPI_Abort(MPI_COMM_WORLD, 1); \
        } \
    } while (0)

static void mpi(int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    if (code == MPI_SUCCESS) return;
    MPI_Error_string(code, text, &length);
    MUST(0, "%s: %s", what, text);
}
#define MPI(call) mpi(call, #call)

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

/* Waits asleep: with more processes than processors, one that spins takes time from those that work. */
static void wait_asleep(MPI_Request *request) {
    for (int done = 0;;) {
        MPI(MPI_Test(request, &done, MPI_STATUS_IGNORE));
        if (done) return;
        usleep(50);
    }
}

/* All processes return at about this time, which is later than that at which the last one came. */
static double start_together(void) {
    MPI_Request request;
    double start = 0;
    MPI(MPI_Ibarrier(MPI_COMM_WORLD, &request));
    wait_asleep(&request);
    if (rank == 0) start = now() + 300e-6 + 100e-6 * size;
    MPI(MPI_Ibcast(&start, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD, &request));
    wait_asleep(&request);
    struct timespec until = { (time_t)start, (long)((start - (time_t)start) * 1e9) };
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    return start;
}

/* From `start` to the end of the process that is last. */
static double seconds_since(double start) {
    MPI_Request request;
    double end = now(), last;
    MPI(MPI_Iallreduce(&end, &last, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD, &request));
    wait_asleep(&request);
    return last - start;
}

/* Data that tells whose it is, and of which write. */
static void fill(void *buffer, size_t bytes, int owner, uint64_t seed) {
    uint64_t *words = buffer, base = (seed * 1024 + (uint64_t)owner) << 32;
    for (size_t i = 0; i < bytes / 8; i++) words[i] = (base + i) * 0x9e3779b97f4a7c15u;
    for (size_t i = bytes / 8 * 8; i < bytes; i++) ((char *)buffer)[i] = (char)(base + i);
}

/* An access: one element of a type in memory, one of a type in the file, for each step; the file's types follow each
 * other. */
struct pattern {
    MPI_Datatype memory, file;
    size_t buffer_bytes;
    int64_t process_bytes, array_bytes; /* of a step: of a process; of all */
    int steps, is_contiguous;
};

static int root(int number) {
    int value = 0;
    while ((value + 1) * (value + 1) <= number) value++;
    return value;
}

static MPI_Datatype block_of(int dimensions, const int *sizes, const int *counts, const int *starts, MPI_Datatype element) {
    MPI_Datatype type;
    MPI(MPI_Type_create_subarray(dimensions, sizes, counts, starts, MPI_ORDER_C, element, &type));
    return type;
}

/* One array, of which each process has a block that is contiguous in its memory. */
static void one_block(struct pattern *made, int dimensions, const int *sizes, const int *counts, const int *starts, int element_bytes) {
    MPI_Datatype element;
    MPI(MPI_Type_contiguous(element_bytes, MPI_BYTE, &element));
    made->process_bytes = made->array_bytes = element_bytes;
    for (int i = 0; i < dimensions; i++) made->process_bytes *= counts[i], made->array_bytes *= sizes[i];
    made->file = block_of(dimensions, sizes, counts, starts, element);
    MPI(MPI_Type_contiguous((int)made->process_bytes, MPI_BYTE, &made->memory));
    MPI(MPI_Type_free(&element));
    made->buffer_bytes = made->process_bytes;
    made->steps = 1;
    made->is_contiguous = 1;
}

#define GHOSTS 2
#define CELLS_MAX 16

/* A solution of NPB's BTIO: q * q processes with q cells each, along the diagonals of a cube; ghost points in memory. */
static void bt(struct pattern *made, int points, int steps, int owner) {
    int cells = root(size), ones[CELLS_MAX];
    MUST(cells * cells == size && cells <= CELLS_MAX && points % cells == 0, "bt needs a square number of processes");
    int edge = points / cells, wide = edge + 2 * GHOSTS;
    int cube[] = { points, points, points }, inner[] = { edge, edge, edge }, outer[] = { wide, wide, wide };
    int ghosts[] = { GHOSTS, GHOSTS, GHOSTS };
    int64_t outer_bytes = (int64_t)wide * wide * wide * 40;
    MPI_Datatype point, in_file[CELLS_MAX], in_memory[CELLS_MAX];
    MPI_Aint places[CELLS_MAX], zeros[CELLS_MAX] = { 0 };
    MPI(MPI_Type_contiguous(5, MPI_DOUBLE, &point));
    for (int z = 0; z < cells; z++) {
        int starts[] = { z * edge, (owner / cells + cells - z) % cells * edge, (owner % cells + z) % cells * edge };
        in_file[z] = block_of(3, cube, inner, starts, point);
        in_memory[z] = block_of(3, outer, inner, ghosts, point);
        places[z] = z * outer_bytes;
        ones[z] = 1;
    }
    MPI(MPI_Type_create_struct(cells, ones, zeros, in_file, &made->file));
    MPI(MPI_Type_create_struct(cells, ones, places, in_memory, &made->memory));
    for (int z = 0; z < cells; z++) MPI_Type_free(&in_file[z]), MPI_Type_free(&in_memory[z]);
    MPI(MPI_Type_free(&point));
    made->array_bytes = (int64_t)points * points * points * 40;
    made->process_bytes = made->array_bytes / size;
    made->buffer_bytes = cells * outer_bytes;
    made->steps = steps;
    made->is_contiguous = 0;
}

/* What `owner` has of a pattern of this name and these numbers. */
static struct pattern pattern_of(const char *text, int owner) {
    struct pattern made;
    char name[32] = "";
    int a = 0, b = 0;
    MUST(sscanf(text, "%31[^:]:%d:%d", name, &a, &b) >= 2, "no pattern: %s", text);
    if (!strcmp(name, "tile")) { /* tile:ELEMENT BYTES:COLUMNS */
        int grid = root(size), columns = b ? b : 1024, rows = columns / 4 * 3;
        MUST(grid * grid == size, "tiles need a square number of processes");
        int sizes[] = { grid * rows, grid * columns }, counts[] = { rows, columns };
        int starts[] = { owner / grid * rows, owner % grid * columns };
        one_block(&made, 2, sizes, counts, starts, a);
    } else if (!strcmp(name, "column")) { /* column:COLUMNS, of a square array of 4-byte integers */
        int sizes[] = { a, a }, counts[] = { a, a / size }, starts[] = { 0, owner * (a / size) };
        MUST(a % size == 0, "columns must be a multiple of processes");
        one_block(&made, 2, sizes, counts, starts, 4);
    } else if (!strcmp(name, "volume")) { /* volume:EDGE:VARIABLES, an array [variable][z][y][x] of doubles, split in z */
        int sizes[] = { b, a, a, a }, counts[] = { b, a / size, a, a }, starts[] = { 0, owner * (a / size), 0, 0 };
        MUST(b > 0 && a % size == 0, "the edge must be a multiple of processes");
        one_block(&made, 4, sizes, counts, starts, 8);
    } else if (!strcmp(name, "bt")) { /* bt:POINTS:STEPS */
        bt(&made, a, b ? b : 1, owner);
    } else {
        MUST(0, "no pattern: %s", text);
    }
    MPI(MPI_Type_commit(&made.file));
    MPI(MPI_Type_commit(&made.memory));
    return made;
}


/* Ends the job where the pattern's parts of two buffers differ. */
static void check_same(const struct pattern *pattern, const void *wanted, const void *found, const char *where) {
    if (pattern->is_contiguous) {
        MUST(!memcmp(wanted, found, pattern->process_bytes), "%s: other data than was written", where);
        return;
    }
    int bytes = (int)pattern->process_bytes, at = 0;
    char *packed = malloc(2 * (size_t)bytes);
    MPI(MPI_Pack(wanted, 1, pattern->memory, packed, bytes, &at, MPI_COMM_SELF));
    at = 0;
    MPI(MPI_Pack(found, 1, pattern->memory, packed + bytes, bytes, &at, MPI_COMM_SELF));
    MUST(!memcmp(packed, packed + bytes, bytes), "%s: other data than was written", where);
    free(packed);
}

static char *memory_of(size_t bytes) {
    char *memory = NULL;
    MUST(!posix_memalign((void **)&memory, 4096, bytes + 8), "no memory");
    memset(memory, 1, bytes);
    return memory;
}

/* Hints as KEY=VALUE,KEY=VALUE */
static MPI_Info info_of(const char *hints) {
    MPI_Info info;
    char copy[512], *rest = copy;
    MPI(MPI_Info_create(&info));
    snprintf(copy, sizeof copy, "%s", hints);
    for (char *word; (word = strsep(&rest, ",")) != NULL;) {
        char *value = strchr(word, '=');
        if (!value) continue;
        *value = 0;
        MPI(MPI_Info_set(info, word, value + 1));
    }
    return info;
}

static MPI_File opened(const char *path, int mode, const char *hints) {
    MPI_File file;
    MPI_Info info = info_of(hints);
    int code = MPI_File_open(MPI_COMM_WORLD, path, mode, info, &file);
    mpi(code, path);
    MPI(MPI_Info_free(&info));
    return file;
}

static void removed(const char *path) {
    if (rank == 0) MPI_File_delete(path, MPI_INFO_NULL);
    MPI(MPI_Barrier(MPI_COMM_WORLD));
}

#endif
