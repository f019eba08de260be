/* Every routine of data access, contiguous and through a view with gaps, from and to memory with gaps. What was written
 * is compared byte by byte; statuses count what there was, also at the end of the file. */
#include "methods.h"

enum { EACH = 30 }; /* integers of one rank */

/* A view, and where it puts the integer with this number. */
struct view {
    MPI_Offset start;
    int has_gaps;
};

static const struct view views[] = {{0, 0}, {20, 0}, {12, 1}};

/* Of five integers the first and the third. */
static MPI_Datatype type_with_gaps(void) {
    MPI_Datatype vector, type;
    MUST(MPI_Type_vector(2, 1, 2, MPI_INT, &vector));
    MUST(MPI_Type_create_resized(vector, 0, 5 * sizeof(int), &type));
    MUST(MPI_Type_commit(&type));
    MUST(MPI_Type_free(&vector));
    return type;
}

/* Integers next to each other, or the first and the third of five. */
static int slot_of(int number, int has_gaps) { return has_gaps ? number / 2 * 5 + number % 2 * 2 : number; }

static MPI_Offset place(const struct view *view, int number) {
    return view->start + slot_of(number, view->has_gaps) * (MPI_Offset)sizeof(int);
}

static void set_view(MPI_File file, const struct view *view, MPI_Datatype gaps) {
    MUST(MPI_File_set_view(file, view->start, MPI_INT, view->has_gaps ? gaps : MPI_INT, "native", MPI_INFO_NULL));
}

static int value_of(int number, int salt) { return number * 1000 + salt; }

static int access_by(MPI_File file, enum method method, int writes, int large, MPI_Offset at, int *memory, int count,
                     MPI_Datatype type, MPI_Status *status) {
#if HAS_LARGE_COUNTS
    if (large) return data_access_large(file, method, writes, at, memory, count, type, status);
#endif
    (void)large;
    return data_access(file, method, writes, at, memory, count, type, status);
}

/* Routines with the shared pointer that are not collective: the ranks take turns. */
static void access_in_turn(MPI_File file, enum method method, int writes, int large, MPI_Offset at, int *memory,
                           int count, MPI_Datatype type, MPI_Status *status) {
    int turns = method == SHARED || method == ISHARED ? size : 1;
    for (int turn = 0; turn < turns; turn++) {
        if (turns == 1 || turn == rank)
            MUST(access_by(file, method, writes, large, at, memory, count, type, status));
        if (turns > 1) barrier();
    }
}

static void check_file(const struct view *view, int count, int salt) {
    if (rank != 0) return;
    int end = (int)place(view, count - 1) + (int)sizeof(int);
    unsigned char *is = allocate((size_t)end + 10), *should = allocate((size_t)end + 10);
    for (int number = 0; number < count; number++) {
        int value = value_of(number, salt);
        memcpy(should + place(view, number), &value, sizeof value);
    }
    EQUAL(raw_read(file_name, 0, is, end + 10), end);
    if (is_left_out("holes")) /* what nobody wrote may be anything */
        for (int number = 0; number < count; number++)
            SAME(is + place(view, number), should + place(view, number), sizeof(int));
    else SAME(is, should, end);
    free(is);
    free(should);
}

static void write_and_read(enum method method, const struct view *view, int memory_has_gaps, int large) {
    static char text[200];
    int salt = (int)method * 10 + memory_has_gaps + 2 * large;
    MPI_Datatype gaps = type_with_gaps(), type = memory_has_gaps ? gaps : MPI_INT;
    int per_item = memory_has_gaps ? 2 : 1, memory[4 * EACH + 40];
    MPI_Status status;
    snprintf(text, sizeof text, "write%s%s, view from %d%s, %s memory", method_names[method], large ? "_c" : "",
             (int)view->start, view->has_gaps ? " with gaps" : "", memory_has_gaps ? "scattered" : "plain");
    case_name = text;
    MPI_File file = open_fresh(file_name);
    set_view(file, view, gaps);
    for (int i = 0; i < EACH; i++) memory[slot_of(i, memory_has_gaps)] = value_of(rank * EACH + i, salt);
    access_in_turn(file, method, 1, large, rank * EACH, memory, EACH / per_item, type, &status);
    COUNTS(&status, type, EACH / per_item);
    COUNTS(&status, MPI_INT, EACH);
    COUNTS(&status, MPI_BYTE, EACH * (int)sizeof(int));
    MUST(MPI_File_sync(file));
    barrier();
    check_file(view, size * EACH, salt);
    barrier();

    /* Each asks for more than its part, so that the last meets the end. */
    memcpy(text, "read ", 5);
    if (uses_shared_pointer(method)) MUST(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    int wanted = is_left_out("eof") ? EACH : EACH + 6, from = rank * (uses_shared_pointer(method) ? wanted : EACH);
    int there = size * EACH - from;
    there = there > wanted ? wanted : there < 0 ? 0 : there;
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) memory[i] = -9;
    access_in_turn(file, method, 0, large, from, memory, wanted / per_item, type, &status);
    COUNTS(&status, MPI_INT, there);
    COUNTS(&status, MPI_BYTE, there * (int)sizeof(int));
    if (there % per_item == 0) COUNTS(&status, type, there / per_item);
    int elements = -1;
    MUST(MPI_Get_elements(&status, type, &elements));
    EQUAL(elements, there);
    for (int i = 0; i < there; i++) EQUAL(memory[slot_of(i, memory_has_gaps)], value_of(from + i, salt));
    int beyond = slot_of(wanted, memory_has_gaps);
    for (int i = 0; i < beyond; i++) {
        int is_gap = memory_has_gaps && i % 5 != 0 && i % 5 != 2;
        int is_after = slot_of(there, memory_has_gaps) <= i;
        if (is_gap || is_after) EQUAL(memory[i], -9);
    }
    MUST(MPI_Type_free(&gaps));
    close_and_delete(&file, file_name);
}

static void all_of(enum method first, enum method last, int large) {
    for (enum method method = first; method <= last; method++)
        for (int view = 0; view < 3; view++) write_and_read(method, &views[view], (view + (int)method) % 2, large);
}

static void explicit_offsets(void) { all_of(AT, IAT, 0); }
static void explicit_offsets_collective(void) { all_of(AT_ALL, AT_ALL_SPLIT, 0); }
static void explicit_offsets_collective_nonblocking(void) { all_of(IAT_ALL, IAT_ALL, 0); }
static void own_pointers(void) { all_of(PLAIN, IPLAIN, 0); }
static void own_pointers_collective(void) { all_of(ALL, ALL_SPLIT, 0); }
static void own_pointers_collective_nonblocking(void) { all_of(IALL, IALL, 0); }
static void shared_pointers(void) { all_of(SHARED, SHARED, 0); }
static void shared_pointers_nonblocking(void) { all_of(ISHARED, ISHARED, 0); }
static void ordered(void) { all_of(ORDERED, ORDERED_SPLIT, 0); }

static void large_counts(void) {
#if HAS_LARGE_COUNTS
    for (enum method method = AT; method < METHODS; method++)
        write_and_read(method, &views[method % 3], method % 2, 1);
#endif
}

/* Nothing is a good amount: no bytes move, the count is 0, also from ranks beside others that do something. */
static void nothing(void) {
    MPI_File file = open_fresh(file_name);
    for (enum method method = AT; method < METHODS; method++) {
        MPI_Status status;
        case_name = method_names[method];
        int byte = 5, wanted = rank == size - 1 && is_collective(method);
        MUST(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
        MUST(data_access(file, method, 1, 3, wanted ? (void *)&byte : NULL, wanted, MPI_BYTE, &status));
        COUNTS(&status, MPI_BYTE, wanted);
        barrier();
        MUST(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
        MUST(data_access(file, method, 0, 3, wanted ? (void *)&byte : NULL, wanted, MPI_BYTE, &status));
        COUNTS(&status, MPI_BYTE, wanted);
        barrier();
    }
    close_and_delete(&file, file_name);
}

/* No status is wanted. */
static void ignored_statuses(void) {
    MPI_File file = open_fresh(file_name);
    for (enum method method = AT; method < METHODS; method++) {
        int value = (int)method, read = -1;
        case_name = method_names[method];
        MUST(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
        MUST(data_access(file, method, 1, rank * 4, &value, 1, MPI_INT, MPI_STATUS_IGNORE));
        MUST(MPI_File_sync(file));
        barrier();
        MUST(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
        MUST(data_access(file, method, 0, rank * 4, &read, 1, MPI_INT, MPI_STATUS_IGNORE));
        EQUAL(read, value);
        barrier();
    }
    close_and_delete(&file, file_name);
}

/* The file ends within an element: the bytes that are there are counted. */
static void end_within_an_element(void) {
    if (is_left_out("eof")) return;
    static const enum method methods[] = {AT, AT_ALL, PLAIN, ALL, IAT};
    fresh(file_name);
    unsigned char bytes[35];
    fill(bytes, 0, sizeof bytes, 3);
    if (rank == 0) raw_write(file_name, 0, bytes, sizeof bytes);
    barrier();
    MPI_File file = open_by(MPI_COMM_WORLD, file_name, MPI_MODE_RDONLY);
    MUST(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        unsigned char read[48];
        MPI_Status status;
        memset(read, 0xee, sizeof read);
        case_name = method_names[methods[i]];
        MUST(data_access(file, methods[i], 0, 2, read, 10, MPI_INT, &status));
        COUNTS(&status, MPI_BYTE, 27);
        SAME(read, bytes + 8, 27);
        for (int at = 27; at < 48; at++) EQUAL(read[at], 0xee);
        /* From the end on there is nothing. */
        MUST(data_access(file, methods[i], 0, 9, read, 10, MPI_INT, &status));
        COUNTS(&status, MPI_BYTE, 0);
        MUST(data_access(file, methods[i], 0, 1000000, read, 10, MPI_INT, &status));
        COUNTS(&status, MPI_BYTE, 0);
    }
    close_and_delete(&file, file_name);
}

/* Where nobody wrote there are zeros. */
static void holes(void) {
    MPI_File file = open_fresh(file_name);
    char byte = 'e', read[64];
    if (rank == 0) MUST(MPI_File_write_at(file, 3000000, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE));
    MUST(MPI_File_sync(file));
    barrier();
    MUST(MPI_File_sync(file));
    MPI_Status status;
    memset(read, 1, sizeof read);
    MUST(MPI_File_read_at_all(file, 1000000 + rank * 64, read, 64, MPI_BYTE, &status));
    COUNTS(&status, MPI_BYTE, 64);
    for (int i = 0; i < 64; i++) EQUAL(read[i], 0);
    memset(read, 1, sizeof read);
    MUST(MPI_File_read_at(file, 3000000 - 40, read, 64, MPI_BYTE, &status));
    COUNTS(&status, MPI_BYTE, 41);
    for (int i = 0; i < 41; i++) EQUAL(read[i], i == 40 ? 'e' : 0);
    close_and_delete(&file, file_name);
}

/* Many requests at once, completed in any order. */
static void many_requests(void) {
    enum { REQUESTS = 50, BYTES = 300 };
    static unsigned char data[REQUESTS][BYTES], read[REQUESTS][BYTES];
    MPI_Request requests[REQUESTS];
    MPI_Status statuses[REQUESTS];
    MPI_File file = open_fresh(file_name);
    for (int i = 0; i < REQUESTS; i++) {
        MPI_Offset at = ((MPI_Offset)i * size + rank) * BYTES;
        fill(data[i], at, BYTES, 8);
        MUST(MPI_File_iwrite_at(file, at, data[i], BYTES, MPI_BYTE, &requests[i]));
    }
    MUST(MPI_Waitall(REQUESTS, requests, statuses));
    for (int i = 0; i < REQUESTS; i++) COUNTS(&statuses[i], MPI_BYTE, BYTES);
    for (int i = 0; i < REQUESTS; i++) {
        MPI_Offset at = ((MPI_Offset)i * size + rank) * BYTES;
        MUST(MPI_File_iread_at(file, at, read[i], BYTES, MPI_BYTE, &requests[i]));
    }
    for (int done = 0; done < REQUESTS; done++) {
        int which;
        MPI_Status status;
        if (done % 2) {
            MUST(MPI_Waitany(REQUESTS, requests, &which, &status));
        } else {
            int flag = 0;
            while (!flag) MUST(MPI_Testany(REQUESTS, requests, &which, &flag, &status));
        }
        CHECK(which != MPI_UNDEFINED);
        COUNTS(&status, MPI_BYTE, BYTES);
        SAME(read[which], data[which], BYTES);
    }
    close_and_delete(&file, file_name);
}

/* Nonblocking collectives may be under way together, also beside messages of the program. */
static void many_collective_requests(void) {
    enum { REQUESTS = 6, BYTES = 5000 };
    static unsigned char data[REQUESTS][BYTES], read[REQUESTS][BYTES];
    MPI_Request requests[REQUESTS + 2];
    MPI_File file = open_fresh(file_name);
    int sent = rank, received = -1;
    MUST(MPI_Irecv(&received, 1, MPI_INT, (rank + size - 1) % size, 5, MPI_COMM_WORLD, &requests[REQUESTS]));
    MUST(MPI_Isend(&sent, 1, MPI_INT, (rank + 1) % size, 5, MPI_COMM_WORLD, &requests[REQUESTS + 1]));
    for (int i = 0; i < REQUESTS; i++) {
        MPI_Offset at = ((MPI_Offset)i * size + rank) * BYTES;
        fill(data[i], at, BYTES, 9);
        MUST(MPI_File_iwrite_at_all(file, at, data[i], BYTES, MPI_BYTE, &requests[i]));
    }
    MUST(MPI_Waitall(REQUESTS + 2, requests, MPI_STATUSES_IGNORE));
    EQUAL(received, (rank + size - 1) % size);
    barrier();
    for (int i = 0; i < REQUESTS; i++) {
        MPI_Offset at = ((MPI_Offset)i * size + rank) * BYTES;
        MUST(MPI_File_iread_at_all(file, at, read[i], BYTES, MPI_BYTE, &requests[i]));
    }
    MUST(MPI_Waitall(REQUESTS, requests, MPI_STATUSES_IGNORE));
    SAME(read, data, sizeof data);
    close_and_delete(&file, file_name);
}

/* Between begin and end of a split collective the program does other things, also with the file. */
static void work_in_a_split_collective(void) {
    enum { BYTES = 100000 };
    static unsigned char data[BYTES], read[BYTES];
    MPI_Status status;
    MPI_Offset bytes;
    MPI_File file = open_fresh(file_name);
    fill(data, (MPI_Offset)rank * BYTES, BYTES, 4);
    MUST(MPI_File_write_at_all_begin(file, (MPI_Offset)rank * BYTES, data, BYTES, MPI_BYTE));
    MUST(MPI_File_get_size(file, &bytes));
    MUST(MPI_File_write_at(file, (MPI_Offset)size * BYTES + rank, "z", 1, MPI_BYTE, MPI_STATUS_IGNORE));
    barrier();
    MUST(MPI_File_write_at_all_end(file, data, &status));
    COUNTS(&status, MPI_BYTE, BYTES);
    MUST(MPI_File_sync(file));
    barrier();
    MUST(MPI_File_read_at_all_begin(file, (MPI_Offset)rank * BYTES, read, BYTES, MPI_BYTE));
    barrier();
    MUST(MPI_File_read_at_all_end(file, read, &status));
    COUNTS(&status, MPI_BYTE, BYTES);
    SAME(read, data, BYTES);
    MUST(MPI_File_get_size(file, &bytes));
    EQUAL(bytes, (MPI_Offset)size * BYTES + size);
    close_and_delete(&file, file_name);
}

/* Each rank has another share of a collective call: none, little, much; and only some of the file's ranks are at the
 * file's end. */
static void uneven_shares(void) {
    enum { UNIT = 70000 };
    MPI_Status status;
    MPI_File file = open_fresh(file_name);
    int bytes = rank * UNIT;
    MPI_Offset at = (MPI_Offset)UNIT * rank * (rank - 1) / 2;
    unsigned char *data = allocate((size_t)bytes), *read = allocate((size_t)bytes + 100);
    fill(data, at, (size_t)bytes, 6);
    MUST(MPI_File_write_at_all(file, at, data, bytes, MPI_BYTE, &status));
    COUNTS(&status, MPI_BYTE, bytes);
    MUST(MPI_File_sync(file));
    barrier();
    MUST(MPI_File_read_at_all(file, at, read, bytes + (rank == size - 1 && !is_left_out("eof") ? 100 : 0), MPI_BYTE, &status));
    COUNTS(&status, MPI_BYTE, bytes);
    SAME(read, data, bytes);
    free(data);
    free(read);
    close_and_delete(&file, file_name);
}

#define CASE(name) {#name, name}
RUN(MPI_THREAD_SINGLE, CASE(explicit_offsets), CASE(explicit_offsets_collective),
    CASE(explicit_offsets_collective_nonblocking), CASE(own_pointers), CASE(own_pointers_collective),
    CASE(own_pointers_collective_nonblocking), CASE(shared_pointers), CASE(shared_pointers_nonblocking), CASE(ordered),
    CASE(large_counts), CASE(nothing), CASE(ignored_statuses), CASE(end_within_an_element), CASE(holes),
    CASE(many_requests), CASE(many_collective_requests), CASE(work_in_a_split_collective), CASE(uneven_shares))
