/* Bad input: each call fails with the class that the standard names, on the ranks that it concerns; nothing hangs, and
 * the file is as usable afterwards as before. */
#include "methods.h"

static MPI_File file;

static void still_good(void) {
    int value = rank * 7, read = -1;
    MUST(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    MUST(MPI_File_write_at_all(file, rank, &value, 1, MPI_INT, MPI_STATUS_IGNORE));
    MUST(MPI_File_read_at_all(file, rank, &read, 1, MPI_INT, MPI_STATUS_IGNORE));
    EQUAL(read, value);
    MUST(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
}

/* All ranks make the same mistake in each routine. */
static void wrong_arguments(void) {
    file = open_fresh(file_name);
    char bytes[8] = "";
    MPI_Status status;
    for (int writes = 0; writes < 2; writes++)
        for (enum method method = AT; method < METHODS; method++) {
            case_name = method_names[method];
            FAILS_BY(data_access(file, method, writes, 0, bytes, -1, MPI_BYTE, &status), MPI_ERR_COUNT, MPI_ERR_ARG);
            FAILS_BY(data_access(file, method, writes, 0, bytes, 1, MPI_DATATYPE_NULL, &status), MPI_ERR_TYPE);
            if (method <= IAT_ALL)
                FAILS_BY(data_access(file, method, writes, -2, bytes, 1, MPI_BYTE, &status), MPI_ERR_ARG);
        }
    case_name = "wrong_arguments";
    still_good();
    close_and_delete(&file, file_name);
}

/* Types that were built and not committed (MPI 4.0, 5.1.9), and freed after that. */
static void uncommitted_types(void) {
    file = open_fresh(file_name);
    int values[8] = {0};
    MPI_Status status;
    MPI_Datatype type;
    MUST(MPI_Type_vector(2, 1, 2, MPI_INT, &type));
    FAILS_BY(MPI_File_write_at(file, 0, values, 1, type, &status), MPI_ERR_TYPE);
    FAILS_BY(MPI_File_read_at_all(file, 0, values, 1, type, &status), MPI_ERR_TYPE);
    FAILS_BY(MPI_File_set_view(file, 0, MPI_INT, type, "native", MPI_INFO_NULL), MPI_ERR_TYPE);
    FAILS_BY(MPI_File_set_view(file, 0, MPI_INT, type, "external32", MPI_INFO_NULL), MPI_ERR_TYPE);
    MUST(MPI_Type_commit(&type));
    MUST(MPI_File_write_at_all(file, rank * 2, values, 1, type, &status));
    MUST(MPI_File_set_view(file, 0, MPI_INT, type, "native", MPI_INFO_NULL));
    MUST(MPI_Type_free(&type));
    still_good();
    close_and_delete(&file, file_name);
}

/* No communicator, also for names that are not this file system's. */
static void no_communicator(void) {
    const char *names[] = {file_name, "/tmp/no-such-directory/x"};
    for (int i = 0; i < 2; i++)
        FAILS_BY(MPI_File_open(MPI_COMM_NULL, names[i], MPI_MODE_RDONLY, MPI_INFO_NULL, &file), MPI_ERR_COMM);
    barrier();
}

/* Amounts that are no multiple of the view's element. */
static void parts_of_elements(void) {
    file = open_fresh(file_name);
    char bytes[8] = "";
    MPI_Status status;
    MUST(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    FAILS(MPI_File_write_at(file, 0, bytes, 3, MPI_BYTE, &status));
    FAILS(MPI_File_read_at(file, 0, bytes, 5, MPI_BYTE, &status));
    FAILS(MPI_File_write_at_all(file, 0, bytes, 3, MPI_BYTE, &status));
    FAILS(MPI_File_write(file, bytes, 7, MPI_BYTE, &status));
    still_good();
    close_and_delete(&file, file_name);
}

static MPI_Datatype committed(MPI_Datatype type) {
    MUST(MPI_Type_commit(&type));
    return type;
}

static void wrong_views(void) {
    file = open_fresh(file_name);
    FAILS_BY(MPI_File_set_view(file, -1, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), MPI_ERR_ARG);
    FAILS_BY(MPI_File_set_view(file, 0, MPI_DATATYPE_NULL, MPI_BYTE, "native", MPI_INFO_NULL), MPI_ERR_TYPE, MPI_ERR_ARG);
    FAILS_BY(MPI_File_set_view(file, 0, MPI_BYTE, MPI_DATATYPE_NULL, "native", MPI_INFO_NULL), MPI_ERR_TYPE, MPI_ERR_ARG);
    FAILS_BY(MPI_File_set_view(file, MPI_DISPLACEMENT_CURRENT, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), MPI_ERR_ARG);
    still_good();
    close_and_delete(&file, file_name);
}

/* File types that the standard forbids: an element of another size, places that fall, negative places. */
static void forbidden_file_types(void) {
    file = open_fresh(file_name);
    MPI_Datatype type;
    MUST(MPI_Type_contiguous(3, MPI_SHORT, &type)); /* 6 bytes are no whole integers */
    type = committed(type);
    FAILS_BY(MPI_File_set_view(file, 0, MPI_INT, type, "native", MPI_INFO_NULL), MPI_ERR_ARG, MPI_ERR_TYPE);
    MUST(MPI_Type_free(&type));
    int ones[] = {1, 1}, falling[] = {3, 0}, negative[] = {-2, 0};
    MUST(MPI_Type_indexed(2, ones, falling, MPI_INT, &type));
    type = committed(type);
    FAILS_BY(MPI_File_set_view(file, 0, MPI_INT, type, "native", MPI_INFO_NULL), MPI_ERR_ARG, MPI_ERR_TYPE);
    MUST(MPI_Type_free(&type));
    MUST(MPI_Type_indexed(2, ones, negative, MPI_INT, &type));
    type = committed(type);
    FAILS_BY(MPI_File_set_view(file, 0, MPI_INT, type, "native", MPI_INFO_NULL), MPI_ERR_ARG, MPI_ERR_TYPE);
    MUST(MPI_Type_free(&type));
    still_good();
    close_and_delete(&file, file_name);
}

/* Overlapping pieces may be read; a file that is open for writing refuses such a view, or the write. */
static void overlapping_file_types(void) {
    file = open_fresh(file_name);
    MPI_Datatype type;
    int values[12] = {0};
    MUST(MPI_Type_vector(3, 2, 1, MPI_INT, &type));
    type = committed(type);
    int code = MPI_File_set_view(file, 0, MPI_INT, type, "native", MPI_INFO_NULL);
    if (code == MPI_SUCCESS) FAILS(MPI_File_write_at(file, 0, values, 6, MPI_INT, MPI_STATUS_IGNORE));
    MUST(MPI_Type_free(&type));
    still_good();
    close_and_delete(&file, file_name);
}

/* A file that is only read may be seen through a file type that overlaps itself (MPI 4.0, 14.3), by every method. */
static void overlapping_reads(void) {
    static const char *const methods[] = {"auto", "list", "two_phase", "multiple", "sieve"};
    int values[64], seen[48];
    for (int i = 0; i < 64; i++) values[i] = i * 1000 + 7;
    fresh(file_name);
    if (rank == 0) raw_write(file_name, 0, values, sizeof values);
    barrier();
    for (int i = 0; i < 5; i++) {
        case_name = methods[i];
        MPI_Info info;
        MUST(MPI_Info_create(&info));
        MUST(MPI_Info_set(info, "weft_method", (char *)methods[i]));
        MUST(MPI_File_open(MPI_COMM_WORLD, file_name, MPI_MODE_RDONLY, info, &file));
        MUST(MPI_Info_free(&info));
        /* Integers 0 1, 1 2, 2 3; the next instance begins at 4. Only the last rank's view overlaps itself. */
        MPI_Datatype type;
        MUST(MPI_Type_vector(3, 2, rank == size - 1 ? 1 : 2, MPI_INT, &type));
        type = committed(type);
        MUST(MPI_File_set_view(file, sizeof(int), MPI_INT, type, "native", MPI_INFO_NULL));
        MUST(MPI_Type_free(&type));
        for (int collective = 0; collective < 2; collective++) {
            MPI_Status status;
            memset(seen, 0, sizeof seen);
            MUST(collective ? MPI_File_read_at_all(file, 1, seen, 40, MPI_INT, &status)
                            : MPI_File_read_at(file, 1, seen, 40, MPI_INT, &status));
            COUNTS(&status, MPI_INT, 40);
            for (int at = 0; at < 40; at++) {
                int element = at + 1, is_last = rank == size - 1;
                int within = is_last ? element % 6 / 2 + element % 2 : element % 6;
                EQUAL(seen[at], values[1 + element / 6 * (is_last ? 4 : 6) + within]);
            }
        }
        MUST(MPI_File_close(&file));
    }
    case_name = "overlapping_reads";
    barrier();
    fresh(file_name);
}

/* One rank's view is wrong, the others' are right: all go on. */
static void a_wrong_view_on_one_rank(void) {
    file = open_fresh(file_name);
    MPI_Offset start = rank == size - 1 ? -1 : 0;
    int code = MPI_File_set_view(file, start, MPI_INT, MPI_INT, "native", MPI_INFO_NULL);
    if (rank == size - 1) EQUAL(class_of(code), MPI_ERR_ARG);
    barrier();
    still_good();
    close_and_delete(&file, file_name);
}

/* One rank's argument of a collective call is wrong: that rank gets the error, nobody waits for ever. */
static void a_wrong_argument_on_one_rank(void) {
    file = open_fresh(file_name);
    static const enum method methods[] = {AT_ALL, ALL, ALL_SPLIT, ORDERED, IAT_ALL};
    for (int i = 0; i < 5; i++) {
        char byte = 'x';
        int is_wrong = rank == i % size;
        case_name = method_names[methods[i]];
        int code = data_access(file, methods[i], 1, rank, &byte, is_wrong ? -1 : 1, MPI_BYTE, MPI_STATUS_IGNORE);
        if (is_wrong) CHECK(class_of(code) == MPI_ERR_COUNT || class_of(code) == MPI_ERR_ARG);
        barrier();
    }
    case_name = "a_wrong_argument_on_one_rank";
    still_good();
    close_and_delete(&file, file_name);
}

/* What has to be the same on all ranks. */
static void ranks_that_differ(void) {
    fresh(file_name);
    MPI_File opened = MPI_FILE_NULL;
    int mode = MPI_MODE_CREATE | (rank == 0 ? MPI_MODE_RDWR : MPI_MODE_WRONLY);
    FAILS_BY(MPI_File_open(MPI_COMM_WORLD, file_name, mode, MPI_INFO_NULL, &opened), MPI_ERR_NOT_SAME, MPI_ERR_AMODE);
    barrier();
    file = open_fresh(file_name);
    FAILS_BY(MPI_File_set_size(file, 1000 + rank), MPI_ERR_NOT_SAME, MPI_ERR_ARG);
    FAILS_BY(MPI_File_preallocate(file, 1000 + rank), MPI_ERR_NOT_SAME, MPI_ERR_ARG);
    FAILS_BY(MPI_File_seek_shared(file, rank, MPI_SEEK_SET), MPI_ERR_NOT_SAME, MPI_ERR_ARG);
    FAILS_BY(MPI_File_set_atomicity(file, rank % 2), MPI_ERR_NOT_SAME, MPI_ERR_ARG);
    FAILS_BY(MPI_File_set_view(file, 0, rank ? MPI_INT : MPI_DOUBLE, rank ? MPI_INT : MPI_DOUBLE, "native", MPI_INFO_NULL),
             MPI_ERR_NOT_SAME, MPI_ERR_ARG);
    still_good();
    close_and_delete(&file, file_name);
}

/* Split collectives in the wrong order. */
static void split_collectives_out_of_order(void) {
    file = open_fresh(file_name);
    char bytes[8] = "", other[8] = "";
    MPI_Status status;
    FAILS(MPI_File_read_all_end(file, bytes, &status));
    FAILS(MPI_File_write_ordered_end(file, bytes, &status));
    MUST(MPI_File_write_at_all_begin(file, rank * 8, bytes, 8, MPI_BYTE));
    FAILS(MPI_File_read_all_begin(file, other, 8, MPI_BYTE));
    FAILS(MPI_File_write_at_all_begin(file, 0, other, 8, MPI_BYTE));
    MUST(MPI_File_write_at_all_end(file, bytes, &status));
    COUNTS(&status, MPI_BYTE, 8);
    still_good();
    close_and_delete(&file, file_name);
}

/* Handles that were closed or freed. */
static void freed_handles(void) {
    char byte = 0;
    MPI_Offset bytes;
    MPI_File copy = file = open_fresh(file_name);
    MUST(MPI_File_close(&file));
    FAILS_BY(MPI_File_read_at(copy, 0, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_FILE);
    FAILS_BY(MPI_File_get_size(copy, &bytes), MPI_ERR_FILE);
    FAILS_BY(MPI_File_close(&copy), MPI_ERR_FILE);
    barrier();
    fresh(file_name);
}

/* Hints that make no sense are left alone. */
static void absurd_hints(void) {
    static const char *const hints[][2] = {
        {"cb_buffer_size", "-5"},          {"cb_buffer_size", "elephants"},   {"cb_nodes", "0"},
        {"cb_nodes", "1000000"},           {"striping_factor", "-3"},         {"striping_unit", "0"},
        {"striping_unit", "99999999999"},  {"striping_factor", "100000"},     {"romio_cb_write", "perhaps"},
        {"romio_ds_read", ""},             {"weft_method", "magic"},          {"ind_rd_buffer_size", "0"},
        {"ind_wr_buffer_size", "-1"},      {"cb_config_list", "*:x,,"},       {"start_iodevice", "-7"},
        {"romio_no_indep_rw", "maybe"},    {"romio_min_fdomain_size", "-1"},  {"access_style", "sideways"},
        {"romio_synchronized_flush", "2"}, {"weft_no_such_hint", "x"},        {"striping_unit", "12345"},
        {"striping_factor", "5"},          {"striping_factor", "160"},        {"striping_factor", "99999999999"},
        {"start_iodevice", "4"},           {"start_iodevice", "100000"},
    };
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++) {
        MPI_Info info;
        static char text[100];
        snprintf(text, sizeof text, "%s=%s", hints[i][0], hints[i][1]);
        case_name = text;
        if (hints[i][1][0] == 0) continue;
        MUST(MPI_Info_create(&info));
        MUST(MPI_Info_set(info, (char *)hints[i][0], (char *)hints[i][1]));
        fresh(file_name);
        MUST(MPI_File_open(MPI_COMM_WORLD, file_name, MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file));
        still_good();
        MUST(MPI_File_set_info(file, info));
        MUST(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", info));
        still_good();
        MUST(MPI_Info_free(&info));
        close_and_delete(&file, file_name);
    }
}

/* Names that no file can have. */
static void impossible_names(void) {
    static char longer[5000];
    char one_longer[2048];
    snprintf(longer, sizeof longer, "%s", file_name);
    memset(longer + strlen(longer), 'x', 4600);
    FAILS(MPI_File_open(MPI_COMM_WORLD, longer, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    snprintf(one_longer, sizeof one_longer, "%s%0300d", file_name, 1);
    FAILS(MPI_File_open(MPI_COMM_WORLD, one_longer, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    if (rank == 0) FAILS(MPI_File_delete(one_longer, MPI_INFO_NULL));
    barrier();
    file = open_fresh(file_name);
    still_good();
    close_and_delete(&file, file_name);
}

/* A directory is no file. */
static void directories(void) {
    char name[2048];
    snprintf(name, sizeof name, "%s", file_name);
    char *slash = strrchr(name, '/');
    if (!slash || slash == name || slash[-1] == ':' || slash[-1] == '/') return;
    *slash = 0;
    FAILS(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    FAILS(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    barrier();
    if (rank == 0) FAILS(MPI_File_delete(name, MPI_INFO_NULL));
    barrier();
}

/* Only the first rank can open it: all ranks learn that it failed. */
static void a_name_that_differs(void) {
    fresh(file_name);
    if (rank == 0) raw_write(file_name, 0, "a", 1);
    barrier();
    const char *name = rank == 0 ? file_name : beside("elsewhere");
    int code = MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDONLY, MPI_INFO_NULL, &file);
    if (code == MPI_SUCCESS) MUST(MPI_File_close(&file));
    barrier();
    fresh(file_name);
}

#define CASE(name) {#name, name}
RUN(MPI_THREAD_SINGLE, CASE(wrong_arguments), CASE(uncommitted_types), CASE(no_communicator), CASE(parts_of_elements),
    CASE(wrong_views), CASE(forbidden_file_types), CASE(overlapping_file_types), CASE(overlapping_reads), CASE(a_wrong_view_on_one_rank),
    CASE(a_wrong_argument_on_one_rank), CASE(ranks_that_differ), CASE(split_collectives_out_of_order),
    CASE(freed_handles), CASE(absurd_hints), CASE(impossible_names), CASE(directories), CASE(a_name_that_differs))
