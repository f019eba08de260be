/* File pointers: each rank's own, and the one that all share. Shared accesses leave no gap and never overlap. */
#include "methods.h"

static MPI_Offset position(MPI_File file) {
    MPI_Offset at = -1;
    MUST(MPI_File_get_position(file, &at));
    return at;
}

static MPI_Offset shared_position(MPI_File file) {
    MPI_Offset at = -1;
    MUST(MPI_File_get_position_shared(file, &at));
    return at;
}

static void own_pointer(void) {
    MPI_File file = open_fresh(file_name);
    int values[10], read[20];
    MPI_Status status;
    EQUAL(position(file), 0);
    MUST(MPI_File_set_view(file, 8, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    MUST(MPI_File_seek(file, rank * 10, MPI_SEEK_SET));
    for (int i = 0; i < 10; i++) values[i] = rank * 10 + i;
    MUST(MPI_File_write(file, values, 4, MPI_INT, &status));
    EQUAL(position(file), rank * 10 + 4);
    MUST(MPI_File_write_at(file, rank * 10 + 9, values + 9, 1, MPI_INT, &status));
    EQUAL(position(file), rank * 10 + 4); /* explicit offsets leave it */
    MUST(MPI_File_write_all(file, values + 4, 5, MPI_INT, &status));
    EQUAL(position(file), rank * 10 + 9);
    EQUAL(shared_position(file), 0);
    MUST(MPI_File_sync(file));
    barrier();
    MUST(MPI_File_sync(file));
    MUST(MPI_File_seek(file, 0, MPI_SEEK_END));
    EQUAL(position(file), size * 10);
    MUST(MPI_File_seek(file, -10 * size, MPI_SEEK_CUR));
    EQUAL(position(file), 0);
    MUST(MPI_File_seek(file, -5, MPI_SEEK_END));
    EQUAL(position(file), size * 10 - 5);
    MUST(MPI_File_read(file, read, 20, MPI_INT, &status));
    COUNTS(&status, MPI_INT, 5);
    EQUAL(read[0], size * 10 - 5);
    MUST(MPI_File_seek(file, 3, MPI_SEEK_SET));
    MUST(MPI_File_seek(file, 4, MPI_SEEK_CUR));
    EQUAL(position(file), 7);
    /* A nonblocking access moves it at once. */
    MPI_Request request;
    MUST(MPI_File_iread(file, read, 2, MPI_INT, &request));
    EQUAL(position(file), 9);
    MUST(MPI_Wait(&request, &status));
    EQUAL(read[0], 7);
    EQUAL(position(file), 9);
    FAILS_BY(MPI_File_seek(file, -1, MPI_SEEK_SET), MPI_ERR_ARG);
    FAILS_BY(MPI_File_seek(file, -100, MPI_SEEK_CUR), MPI_ERR_ARG);
    FAILS_BY(MPI_File_seek(file, 0, 12345), MPI_ERR_ARG);
    EQUAL(position(file), 9);
    /* A new view begins at its start. */
    MUST(MPI_File_set_view(file, 8, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    EQUAL(position(file), 0);
    close_and_delete(&file, file_name);
}

/* The end of the file, as offsets of a view with gaps count it. */
static void ends_of_views(void) {
    MPI_Datatype vector, type;
    MPI_File file = open_fresh(file_name);
    MUST(MPI_Type_vector(2, 1, 2, MPI_INT, &vector));
    MUST(MPI_Type_create_resized(vector, 0, 20, &type));
    MUST(MPI_Type_commit(&type));
    /* The first offset behind the end: where the next whole element can go. */
    static const struct {
        int bytes, offset;
    } ends[] = {{4, 0}, {8, 1}, {16, 2}, {24, 2}, {28, 3}, {36, 4}, {64, 6}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        MUST(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
        barrier();
        MUST(MPI_File_set_size(file, ends[i].bytes));
        MUST(MPI_File_set_view(file, 4, MPI_INT, type, "native", MPI_INFO_NULL));
        MUST(MPI_File_seek(file, 0, MPI_SEEK_END));
        EQUAL(position(file), ends[i].offset);
        if (!is_left_out("shared_end")) {
            MUST(MPI_File_seek_shared(file, 0, MPI_SEEK_END));
            EQUAL(shared_position(file), ends[i].offset);
        }
        barrier();
    }
    MUST(MPI_Type_free(&vector));
    MUST(MPI_Type_free(&type));
    close_and_delete(&file, file_name);
}

static void shared_pointer(void) {
    MPI_File file = open_fresh(file_name);
    MPI_Status status;
    int value = rank, read[4];
    EQUAL(shared_position(file), 0);
    barrier();
    MUST(MPI_File_set_view(file, 40, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    MUST(MPI_File_write_shared(file, &value, 1, MPI_INT, &status));
    COUNTS(&status, MPI_INT, 1);
    barrier();
    EQUAL(shared_position(file), size);
    EQUAL(position(file), 0);
    barrier();
    MUST(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    EQUAL(shared_position(file), 0);
    barrier();
    MUST(MPI_File_read_shared(file, read, 1, MPI_INT, &status));
    int seen[64] = {0}, all[64];
    CHECK(read[0] >= 0 && read[0] < size);
    seen[read[0]] = 1;
    MUST(MPI_Allreduce(seen, all, size, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    for (int i = 0; i < size; i++) EQUAL(all[i], 1);
    MUST(MPI_File_seek_shared(file, 2, MPI_SEEK_SET));
    MUST(MPI_File_seek_shared(file, 3, MPI_SEEK_CUR));
    EQUAL(shared_position(file), 5);
    barrier();
    if (!is_left_out("shared_end")) {
        MUST(MPI_File_seek_shared(file, -1, MPI_SEEK_END));
        EQUAL(shared_position(file), size - 1);
    }
    barrier();
    if (!is_left_out("shared_before_start")) {
        MUST(MPI_File_seek_shared(file, 2, MPI_SEEK_SET));
        FAILS_BY(MPI_File_seek_shared(file, -1, MPI_SEEK_SET), MPI_ERR_ARG);
        EQUAL(shared_position(file), 2);
    }
    barrier();
    /* A new view begins at its start. */
    MUST(MPI_File_set_view(file, 40, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    EQUAL(shared_position(file), 0);
    close_and_delete(&file, file_name);
}

/* All write records of various lengths as they like; each record is whole, and they fill the file. */
static void no_gap_and_no_overlap(void) {
    enum { RECORDS = 40, LONGEST = 200 };
    MPI_File file = open_fresh(file_name);
    int record[LONGEST], mine = 0, total = 0;
    MUST(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    for (int number = 0; number < RECORDS; number++) {
        int length = 3 + pattern(number, (unsigned)rank) % (LONGEST - 3);
        record[0] = length;
        record[1] = rank;
        record[2] = number;
        for (int i = 3; i < length; i++) record[i] = rank * 1000 + number;
        if (number % 3 == 2) {
            MPI_Request request;
            MUST(MPI_File_iwrite_shared(file, record, length, MPI_INT, &request));
            MUST(MPI_Wait(&request, MPI_STATUS_IGNORE));
        } else {
            MUST(MPI_File_write_shared(file, record, length, MPI_INT, MPI_STATUS_IGNORE));
        }
        mine += length;
    }
    MUST(MPI_Allreduce(&mine, &total, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    EQUAL(shared_position(file), total);
    MUST(MPI_File_sync(file));
    barrier();
    if (rank == 0) {
        int *all = allocate((size_t)total * sizeof(int) + 4), next[64] = {0};
        EQUAL(raw_read(file_name, 0, all, total * (int)sizeof(int) + 4), total * (int)sizeof(int));
        for (int at = 0; at < total; at += all[at]) {
            int writer = all[at + 1];
            CHECK(all[at] >= 3 && all[at] < LONGEST && writer >= 0 && writer < size);
            EQUAL(all[at + 2], next[writer]); /* a rank's own records are in its order */
            for (int i = 3; i < all[at]; i++) EQUAL(all[at + i], writer * 1000 + next[writer]);
            next[writer]++;
        }
        for (int i = 0; i < size; i++) EQUAL(next[i], RECORDS);
        free(all);
    }
    close_and_delete(&file, file_name);
}

/* Readers share a queue of records: each is read by one. */
static void a_queue_of_work(void) {
    enum { RECORDS = 200 };
    MPI_File file = open_fresh(file_name);
    int seen[RECORDS] = {0}, all[RECORDS], values[RECORDS];
    for (int i = 0; i < RECORDS; i++) values[i] = i;
    MUST(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    if (rank == 0) MUST(MPI_File_write_at(file, 0, values, RECORDS, MPI_INT, MPI_STATUS_IGNORE));
    MUST(MPI_File_sync(file));
    barrier();
    for (;;) {
        MPI_Status status;
        int value = -1, count;
        MUST(MPI_File_read_shared(file, &value, 1, MPI_INT, &status));
        MUST(MPI_Get_count(&status, MPI_INT, &count));
        if (count == 0) break;
        CHECK(value >= 0 && value < RECORDS);
        seen[value]++;
    }
    MUST(MPI_Allreduce(seen, all, RECORDS, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    for (int i = 0; i < RECORDS; i++) EQUAL(all[i], 1);
    close_and_delete(&file, file_name);
}

/* In the order of ranks, whoever comes first. */
static void ordered_by_rank(void) {
    MPI_File file = open_fresh(file_name);
    MUST(MPI_File_set_view(file, 16, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    int total = 0;
    for (int round = 0; round < 6; round++) {
        int length = (rank * 7 + round) % 5, values[8], expected = total;
        if (rank == round % size) usleep(20000); /* one is late */
        for (int i = 0; i < rank; i++) expected += (i * 7 + round) % 5;
        for (int i = 0; i < length; i++) values[i] = expected + i;
        MPI_Status status;
        if (round % 2) {
            MUST(MPI_File_write_ordered_begin(file, values, length, MPI_INT));
            MUST(MPI_File_write_ordered_end(file, values, &status));
        } else {
            MUST(MPI_File_write_ordered(file, values, length, MPI_INT, &status));
        }
        COUNTS(&status, MPI_INT, length);
        for (int i = 0; i < size; i++) total += (i * 7 + round) % 5;
        EQUAL(shared_position(file), total);
        barrier();
    }
    MUST(MPI_File_sync(file));
    MUST(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    int values[200], share = total / size + 1, from = share * rank;
    MPI_Status status;
    MUST(MPI_File_read_ordered(file, values, share, MPI_INT, &status));
    int there = total - from < 0 ? 0 : total - from < share ? total - from : share;
    if (!is_left_out("eof")) COUNTS(&status, MPI_INT, there);
    for (int i = 0; i < there; i++) EQUAL(values[i], from + i);
    close_and_delete(&file, file_name);
}

/* Through a view with gaps, the shared pointer counts elements. */
static void shared_through_a_view(void) {
    MPI_Datatype vector, type;
    MPI_File file = open_fresh(file_name);
    MUST(MPI_Type_vector(3, 2, 3, MPI_INT, &vector));
    MUST(MPI_Type_create_resized(vector, 0, 48, &type));
    MUST(MPI_Type_commit(&type));
    MUST(MPI_File_set_view(file, 4, MPI_INT, type, "native", MPI_INFO_NULL));
    int values[5];
    for (int i = 0; i < 5; i++) values[i] = rank * 5 + i;
    MUST(MPI_File_write_ordered(file, values, 5, MPI_INT, MPI_STATUS_IGNORE));
    EQUAL(shared_position(file), size * 5);
    barrier();
    if (rank == 0) {
        int raw[200];
        int bytes = raw_read(file_name, 4, raw, sizeof raw), last = size * 5 - 1;
        int end = last / 6 * 48 + last % 6 / 2 * 12 + last % 2 * 4 + 4;
        EQUAL(bytes, end);
        for (int i = 0; i < size * 5; i++) EQUAL(raw[i / 6 * 12 + i % 6 / 2 * 3 + i % 2], i);
    }
    barrier();
    MUST(MPI_File_seek_shared(file, 3, MPI_SEEK_SET));
    MUST(MPI_File_read_ordered(file, values, 1, MPI_INT, MPI_STATUS_IGNORE));
    EQUAL(values[0], 3 + rank);
    MUST(MPI_Type_free(&vector));
    MUST(MPI_Type_free(&type));
    close_and_delete(&file, file_name);
}

/* Each open has its own shared pointer, also of the same file. */
static void each_open_has_its_own(void) {
    MPI_File first = open_fresh(file_name), other, second, mine;
    second = open_by(MPI_COMM_WORLD, file_name, MPI_MODE_RDWR);
    other = open_fresh(beside("other"));
    mine = open_by(MPI_COMM_SELF, file_name, MPI_MODE_RDWR);
    char letter = 'a', read = 0;
    MUST(MPI_File_write_ordered(first, &letter, 1, MPI_CHAR, MPI_STATUS_IGNORE));
    EQUAL(shared_position(first), size);
    EQUAL(shared_position(second), 0);
    EQUAL(shared_position(other), 0);
    EQUAL(shared_position(mine), 0);
    barrier();
    MUST(MPI_File_write_ordered(other, "xyz", 3, MPI_CHAR, MPI_STATUS_IGNORE));
    MUST(MPI_File_write_ordered(second, "b", 1, MPI_CHAR, MPI_STATUS_IGNORE));
    MUST(MPI_File_sync(second));
    MUST(MPI_File_read_shared(mine, &read, 1, MPI_CHAR, MPI_STATUS_IGNORE));
    EQUAL(read, 'b');
    EQUAL(shared_position(mine), 1);
    EQUAL(shared_position(first), size);
    EQUAL(shared_position(second), size);
    EQUAL(shared_position(other), 3 * size);
    barrier();
    MUST(MPI_File_close(&mine));
    MUST(MPI_File_close(&second));
    MUST(MPI_File_write_ordered(first, "c", 1, MPI_CHAR, MPI_STATUS_IGNORE));
    EQUAL(shared_position(first), 2 * size);
    MUST(MPI_File_close(&first));
    EQUAL(raw_size(file_name), 2 * size);
    EQUAL(raw_size(beside("other")), 3 * size);
    barrier();
    /* A file opened again begins again. */
    first = open_by(MPI_COMM_WORLD, file_name, MPI_MODE_RDWR);
    EQUAL(shared_position(first), 0);
    barrier();
    close_and_delete(&first, file_name);
    close_and_delete(&other, beside("other"));
}

/* Nothing but the file is in its directory: no file with a pointer, no file with a lock. */
static void one_name(void) {
    if (file_name[0] != '/') return;
    MPI_File file = open_fresh(file_name);
    MUST(MPI_File_write_ordered(file, "a", 1, MPI_CHAR, MPI_STATUS_IGNORE));
    close_and_delete(&file, file_name);
    if (rank == 0) {
        char command[2200];
        snprintf(command, sizeof command, "d=$(dirname '%s'); ls -A \"$d\" | grep -q . && exit 1; exit 0", file_name);
        EQUAL(system(command), 0);
    }
    barrier();
}

#define CASE(name) {#name, name}
RUN(MPI_THREAD_SINGLE, CASE(own_pointer), CASE(ends_of_views), CASE(shared_pointer), CASE(no_gap_and_no_overlap),
    CASE(a_queue_of_work), CASE(ordered_by_rank), CASE(shared_through_a_view), CASE(each_open_has_its_own),
    CASE(one_name))
