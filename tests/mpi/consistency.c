/* What other ranks see, and when: atomic mode, and sync, barrier, sync. */
#include "methods.h"

enum { ROUNDS = 20, BYTES = 48 * 1024 };

static unsigned char buffer[BYTES];

static void must_be_of_one(const unsigned char *bytes, int count, int step) {
    for (int i = 0; i < count; i += step)
        if (bytes[i] != bytes[0]) FAIL("byte %d is of %d, byte 0 of %d", i, bytes[i], bytes[0]);
    CHECK(bytes[0] <= size);
}

/* All write the same range at once, all of it; then some read while others write. Everything seen is one rank's. */
static void atomic_overlap(int is_strided) {
    MPI_Datatype strided;
    MPI_File file = open_fresh(file_name);
    int atomic = 0;
    MUST(MPI_Type_vector(BYTES / 64, 32, 64, MPI_BYTE, &strided));
    MUST(MPI_Type_commit(&strided));
    MUST(MPI_File_set_atomicity(file, 1));
    MUST(MPI_File_get_atomicity(file, &atomic));
    EQUAL(atomic, 1);
    if (is_strided) MUST(MPI_File_set_view(file, 0, MPI_BYTE, strided, "native", MPI_INFO_NULL));
    int count = is_strided ? BYTES / 2 : BYTES;
    for (int round = 0; round < ROUNDS; round++) {
        memset(buffer, rank + 1, BYTES);
        MUST(MPI_File_write_at(file, 0, buffer, count, MPI_BYTE, MPI_STATUS_IGNORE));
        barrier();
        memset(buffer, 0, BYTES);
        MUST(MPI_File_read_at(file, 0, buffer, count, MPI_BYTE, MPI_STATUS_IGNORE));
        must_be_of_one(buffer, count, 1);
        barrier();
        if ((rank + round) % 2) {
            memset(buffer, rank + 1, BYTES);
            MUST(MPI_File_write_at(file, 0, buffer, count, MPI_BYTE, MPI_STATUS_IGNORE));
        } else {
            MUST(MPI_File_read_at(file, 0, buffer, count, MPI_BYTE, MPI_STATUS_IGNORE));
            must_be_of_one(buffer, count, 1);
        }
    }
    barrier();
    /* Collectively, each with a part that overlaps its neighbours': what two claim is one's of them. */
    MUST(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    MUST(MPI_File_set_size(file, 0));
    enum { PART = 3000 };
    memset(buffer, rank + 1, 2 * PART);
    MUST(MPI_File_write_at_all(file, rank * PART, buffer, 2 * PART, MPI_BYTE, MPI_STATUS_IGNORE));
    barrier();
    for (int part = 0; part <= size; part++) {
        MUST(MPI_File_read_at(file, part * PART, buffer, PART, MPI_BYTE, MPI_STATUS_IGNORE));
        must_be_of_one(buffer, PART, 1);
        CHECK(buffer[0] == part || buffer[0] == part + 1);
    }
    barrier();
    MUST(MPI_File_set_atomicity(file, 0));
    MUST(MPI_File_get_atomicity(file, &atomic));
    EQUAL(atomic, 0);
    MUST(MPI_Type_free(&strided));
    close_and_delete(&file, file_name);
}

static void atomic_contiguous(void) { atomic_overlap(0); }
static void atomic_strided(void) { atomic_overlap(1); }

/* In atomic mode a write is seen by whoever hears of it. */
static void atomic_is_seen_at_once(void) {
    MPI_File file = open_fresh(file_name);
    MUST(MPI_File_set_atomicity(file, 1));
    for (int round = 0; round < ROUNDS; round++) {
        int writer = round % size, value = -1;
        MPI_Offset at = round * 4000;
        if (rank == writer) MUST(MPI_File_write_at(file, at, &round, 1, MPI_INT, MPI_STATUS_IGNORE));
        barrier();
        MUST(MPI_File_read_at(file, at, &value, 1, MPI_INT, MPI_STATUS_IGNORE));
        EQUAL(value, round);
    }
    close_and_delete(&file, file_name);
}

/* The same by two opens of one file, on different communicators. */
static void atomic_between_opens(void) {
    fresh(file_name);
    MPI_File all = open_by(MPI_COMM_WORLD, file_name, MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_File own = open_by(MPI_COMM_SELF, file_name, MPI_MODE_RDWR);
    MUST(MPI_File_set_atomicity(all, 1));
    MUST(MPI_File_set_atomicity(own, 1));
    for (int round = 0; round < ROUNDS; round++) {
        memset(buffer, rank + 1, 9000);
        MUST(MPI_File_write_at(round % 2 ? all : own, 0, buffer, 9000, MPI_BYTE, MPI_STATUS_IGNORE));
        MUST(MPI_File_read_at(round % 2 ? own : all, 0, buffer, 9000, MPI_BYTE, MPI_STATUS_IGNORE));
        must_be_of_one(buffer, 9000, 1);
    }
    MUST(MPI_File_close(&own));
    close_and_delete(&all, file_name);
}

/* Without atomic mode: sync, barrier, sync. */
static void sync_barrier_sync(void) {
    MPI_File file = open_fresh(file_name);
    for (int round = 0; round < ROUNDS; round++) {
        int writer = round % size, values[500], read[500];
        for (int i = 0; i < 500; i++) values[i] = round * 500 + i;
        if (rank == writer)
            MUST(MPI_File_write_at(file, round * 100, values, 500, MPI_INT, MPI_STATUS_IGNORE));
        MUST(MPI_File_sync(file));
        barrier();
        MUST(MPI_File_sync(file));
        MUST(MPI_File_read_at(file, round * 100, read, 500, MPI_INT, MPI_STATUS_IGNORE));
        SAME(read, values, sizeof values);
        barrier();
    }
    close_and_delete(&file, file_name);
}

/* Between two opens: close and open are as good as a sync. */
static void close_then_open(void) {
    fresh(file_name);
    for (int round = 0; round < ROUNDS; round++) {
        int read = -1;
        if (rank == round % size) raw_write(file_name, round % 3 * 5000, &round, sizeof round);
        barrier();
        EQUAL(raw_read(file_name, round % 3 * 5000, &read, sizeof read), (int)sizeof read);
        EQUAL(read, round);
        barrier();
    }
    fresh(file_name);
}

/* A rank sees what it wrote itself, at once, by whichever routine. */
static void own_writes(void) {
    MPI_File file = open_fresh(file_name);
    static const enum method methods[] = {AT, IAT, AT_ALL, AT_ALL_SPLIT, IAT_ALL};
    for (int round = 0; round < 25; round++) {
        unsigned char data[700], read[700];
        MPI_Offset at = rank * 5000 + round * 100;
        fill(data, at, sizeof data, (unsigned)round);
        MUST(data_access(file, methods[round % 5], 1, at, data, sizeof data, MPI_BYTE, MPI_STATUS_IGNORE));
        MUST(data_access(file, methods[round / 5], 0, at, read, sizeof read, MPI_BYTE, MPI_STATUS_IGNORE));
        SAME(read, data, sizeof data);
    }
    close_and_delete(&file, file_name);
}

/* Neighbours write odd ranges next to each other at the same time: none takes the other's bytes along. */
static void neighbours(void) {
    enum { PIECE = 37, PIECES = 600 };
    MPI_File file = open_fresh(file_name);
    MPI_Datatype mine;
    unsigned char *data = allocate(PIECE * PIECES), *all = allocate((size_t)(PIECE * PIECES * size));
    MUST(MPI_Type_vector(PIECES, PIECE, PIECE * size, MPI_BYTE, &mine));
    MUST(MPI_Type_commit(&mine));
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < PIECES; i++)
            fill(data + i * PIECE, (i * size + rank) * PIECE, PIECE, (unsigned)round);
        MUST(MPI_File_set_view(file, rank * PIECE, MPI_BYTE, mine, "native", MPI_INFO_NULL));
        if (round % 2) {
            MUST(MPI_File_write_at_all(file, 0, data, PIECE * PIECES, MPI_BYTE, MPI_STATUS_IGNORE));
        } else {
            /* By itself, in halves. */
            MUST(MPI_File_write_at(file, 0, data, PIECE * PIECES / 2, MPI_BYTE, MPI_STATUS_IGNORE));
            MUST(MPI_File_write_at(file, PIECE * PIECES / 2, data + PIECE * PIECES / 2, PIECE * PIECES / 2, MPI_BYTE,
                                   MPI_STATUS_IGNORE));
        }
        MUST(MPI_File_sync(file));
        barrier();
        EQUAL(raw_read(file_name, 0, all, PIECE * PIECES * size), PIECE * PIECES * size);
        for (int i = 0; i < PIECE * PIECES * size; i++) EQUAL(all[i], pattern(i, (unsigned)round));
        barrier();
    }
    MUST(MPI_Type_free(&mine));
    free(data);
    free(all);
    close_and_delete(&file, file_name);
}

#define CASE(name) {#name, name}
RUN(MPI_THREAD_SINGLE, CASE(atomic_contiguous), CASE(atomic_strided), CASE(atomic_is_seen_at_once),
    CASE(atomic_between_opens), CASE(sync_barrier_sync), CASE(close_then_open), CASE(own_writes), CASE(neighbours))
