/* Opening, closing, deleting; sizes; what a file says of itself; error handlers. */
#include "check.h"

static void open_modes(void) {
    const char *name = file_name;
    MPI_File file;
    MPI_Comm world = MPI_COMM_WORLD;
    fresh(name);
    FAILS_BY(MPI_File_open(world, name, MPI_MODE_RDONLY, MPI_INFO_NULL, &file), MPI_ERR_NO_SUCH_FILE);
    FAILS_BY(MPI_File_open(world, name, MPI_MODE_RDWR, MPI_INFO_NULL, &file), MPI_ERR_NO_SUCH_FILE);
    FAILS_BY(MPI_File_open(world, beside("no/where"), MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file),
             MPI_ERR_NO_SUCH_FILE, MPI_ERR_BAD_FILE);
    file = open_by(world, name, MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_WRONLY);
    MUST(MPI_File_close(&file));
    CHECK(file == MPI_FILE_NULL);
    FAILS_BY(MPI_File_open(world, name, MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_RDWR, MPI_INFO_NULL, &file),
             MPI_ERR_FILE_EXISTS);
    /* The file is not truncated by a later open. */
    if (rank == 0) raw_write(name, 0, "abc", 3);
    barrier();
    file = open_by(world, name, MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Offset bytes;
    MUST(MPI_File_get_size(file, &bytes));
    EQUAL(bytes, 3);
    MUST(MPI_File_close(&file));
    file = open_by(world, name, MPI_MODE_RDONLY);
    char text[4] = "";
    MUST(MPI_File_read_at(file, 0, text, 3, MPI_CHAR, MPI_STATUS_IGNORE));
    CHECK(strcmp(text, "abc") == 0);
    close_and_delete(&file, name);
}

static void open_on_a_path_through_a_file(void) {
    fresh(file_name);
    if (rank == 0) raw_write(file_name, 0, "abc", 3);
    barrier();
    char below[2048];
    snprintf(below, sizeof below, "%s/below", file_name);
    MPI_File file;
    FAILS_BY(MPI_File_open(MPI_COMM_WORLD, below, MPI_MODE_RDONLY, MPI_INFO_NULL, &file),
             MPI_ERR_NO_SUCH_FILE, MPI_ERR_BAD_FILE, MPI_ERR_FILE);
    barrier();
    if (rank == 0) MUST(MPI_File_delete(file_name, MPI_INFO_NULL));
    barrier();
}

static void wrong_modes(void) {
    static const int wrong[] = {
        0,
        MPI_MODE_CREATE,
        MPI_MODE_RDONLY | MPI_MODE_WRONLY,
        MPI_MODE_RDONLY | MPI_MODE_RDWR,
        MPI_MODE_WRONLY | MPI_MODE_RDWR,
        MPI_MODE_RDONLY | MPI_MODE_CREATE,
        MPI_MODE_RDONLY | MPI_MODE_EXCL,
        MPI_MODE_RDWR | MPI_MODE_SEQUENTIAL,
    };
    fresh(file_name);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        MPI_File file;
        FAILS_BY(MPI_File_open(MPI_COMM_WORLD, file_name, wrong[i], MPI_INFO_NULL, &file), MPI_ERR_AMODE);
    }
    FAILS_BY(MPI_File_delete(file_name, MPI_INFO_NULL), MPI_ERR_NO_SUCH_FILE);
}

static void access_against_the_mode(void) {
    const char *name = file_name;
    char byte = 'x';
    MPI_Offset bytes = 0;
    fresh(name);
    MPI_File file = open_by(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_WRONLY);
    FAILS_BY(MPI_File_read_at(file, 0, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_ACCESS);
    FAILS_BY(MPI_File_read(file, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_ACCESS);
    FAILS_BY(MPI_File_read_at_all(file, 0, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_ACCESS);
    FAILS_BY(MPI_File_read_shared(file, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_ACCESS);
    MPI_Request request;
    FAILS_BY(MPI_File_iread_at(file, 0, &byte, 1, MPI_BYTE, &request), MPI_ERR_ACCESS);
    MUST(MPI_File_write_at(file, rank, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE));
    MUST(MPI_File_close(&file));
    barrier();

    file = open_by(MPI_COMM_WORLD, name, MPI_MODE_RDONLY);
    FAILS_BY(MPI_File_write_at(file, 0, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_READ_ONLY);
    FAILS_BY(MPI_File_write(file, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_READ_ONLY);
    FAILS_BY(MPI_File_write_all(file, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_READ_ONLY);
    FAILS_BY(MPI_File_write_ordered(file, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_READ_ONLY);
    FAILS_BY(MPI_File_iwrite(file, &byte, 1, MPI_BYTE, &request), MPI_ERR_READ_ONLY);
    MUST(MPI_File_get_size(file, &bytes));
    EQUAL(bytes, size);
    MUST(MPI_File_close(&file));
    if (rank == 0) MUST(MPI_File_delete(name, MPI_INFO_NULL));
    barrier();
}

static void size_against_the_mode(void) {
    fresh(file_name);
    if (rank == 0) raw_write(file_name, 0, "abc", 3);
    barrier();
    MPI_File file = open_by(MPI_COMM_WORLD, file_name, MPI_MODE_RDONLY);
    FAILS_BY(MPI_File_set_size(file, 10), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
    FAILS_BY(MPI_File_preallocate(file, 10), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
    MPI_Offset bytes = 0;
    MUST(MPI_File_get_size(file, &bytes));
    EQUAL(bytes, 3);
    close_and_delete(&file, file_name);
}

static void sequential(void) {
    char byte = (char)('a' + rank), read[64] = "";
    MPI_Offset at;
    fresh(file_name);
    MPI_File file = open_by(MPI_COMM_WORLD, file_name, MPI_MODE_CREATE | MPI_MODE_WRONLY | MPI_MODE_SEQUENTIAL);
    FAILS_BY(MPI_File_write_at(file, 0, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_UNSUPPORTED_OPERATION);
    FAILS_BY(MPI_File_write(file, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_UNSUPPORTED_OPERATION);
    FAILS_BY(MPI_File_seek(file, 0, MPI_SEEK_SET), MPI_ERR_UNSUPPORTED_OPERATION);
    FAILS_BY(MPI_File_seek_shared(file, 0, MPI_SEEK_SET), MPI_ERR_UNSUPPORTED_OPERATION);
    FAILS_BY(MPI_File_get_position(file, &at), MPI_ERR_UNSUPPORTED_OPERATION);
    FAILS_BY(MPI_File_get_position_shared(file, &at), MPI_ERR_UNSUPPORTED_OPERATION);
    MUST(MPI_File_write_ordered(file, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE));
    MUST(MPI_File_close(&file));
    EQUAL(raw_read(file_name, 0, read, 64), size);
    for (int i = 0; i < size; i++) EQUAL(read[i], 'a' + i);
    barrier();
    if (rank == 0) MUST(MPI_File_delete(file_name, MPI_INFO_NULL));
    barrier();
}

static void null_files(void) {
    char byte = 0;
    MPI_File null = MPI_FILE_NULL;
    MPI_Offset offset;
    MPI_Info info;
    int number;
    FAILS_BY(MPI_File_read(null, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_FILE);
    FAILS_BY(MPI_File_write_at(null, 0, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_FILE);
    FAILS_BY(MPI_File_write_all(null, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_FILE);
    FAILS_BY(MPI_File_get_size(null, &offset), MPI_ERR_FILE);
    FAILS_BY(MPI_File_set_size(null, 0), MPI_ERR_FILE);
    FAILS_BY(MPI_File_sync(null), MPI_ERR_FILE);
    FAILS_BY(MPI_File_get_amode(null, &number), MPI_ERR_FILE);
    FAILS_BY(MPI_File_get_info(null, &info), MPI_ERR_FILE);
    FAILS_BY(MPI_File_set_view(null, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), MPI_ERR_FILE);
    FAILS_BY(MPI_File_seek(null, 0, MPI_SEEK_SET), MPI_ERR_FILE);
    FAILS_BY(MPI_File_seek_shared(null, 0, MPI_SEEK_SET), MPI_ERR_FILE);
    FAILS_BY(MPI_File_close(&null), MPI_ERR_FILE);
    /* The handle is null after a close. */
    MPI_File file = open_fresh(file_name);
    close_and_delete(&file, file_name);
    FAILS_BY(MPI_File_get_size(file, &offset), MPI_ERR_FILE);
}

static int handler_calls, handler_class;
static MPI_File handler_file;

static void handler(MPI_File *file, int *code, ...) {
    handler_calls++;
    handler_file = *file;
    MPI_Error_class(*code, &handler_class);
}

static void error_handlers(void) {
    char byte = 0;
    MPI_Errhandler mine, got;
    MPI_File file = open_fresh(file_name);
    MUST(MPI_File_get_errhandler(file, &got));
    CHECK(got == MPI_ERRORS_RETURN);
    MUST(MPI_File_create_errhandler(handler, &mine));
    MUST(MPI_File_set_errhandler(file, mine));
    handler_calls = 0;
    MUST(MPI_File_call_errhandler(file, MPI_ERR_QUOTA));
    EQUAL(handler_calls, 1);
    EQUAL(handler_class, MPI_ERR_QUOTA);
    CHECK(handler_file == file);
    /* Errors of calls reach it, with the file. */
    FAILS(MPI_File_seek(file, -1, MPI_SEEK_SET));
    EQUAL(handler_calls, 2);
    CHECK(handler_file == file);
    FAILS(MPI_File_write_at(file, -5, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE));
    EQUAL(handler_calls, 3);
    CHECK(handler_file == file);
    MUST(MPI_File_write_at(file, 0, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE));
    EQUAL(handler_calls, 3);
    MUST(MPI_File_get_errhandler(file, &got));
    CHECK(got == mine);
    MUST(MPI_Errhandler_free(&got));
    MUST(MPI_File_set_errhandler(file, MPI_ERRORS_RETURN));
    FAILS(MPI_File_seek(file, -1, MPI_SEEK_SET));
    EQUAL(handler_calls, 3);
    MUST(MPI_Errhandler_free(&mine));
    close_and_delete(&file, file_name);
}

/* The handler of MPI_FILE_NULL is for files that cannot be opened or deleted, and each new file begins with it. */
static void error_handler_of_no_file(void) {
    MPI_Errhandler mine, before, got;
    MPI_File file;
    MUST(MPI_File_get_errhandler(MPI_FILE_NULL, &before));
    CHECK(before == MPI_ERRORS_RETURN);
    MUST(MPI_File_create_errhandler(handler, &mine));
    MUST(MPI_File_set_errhandler(MPI_FILE_NULL, mine));
    handler_calls = 0;
    fresh(beside("void")); /* rank 0's delete fails */
    EQUAL(handler_calls, rank == 0);
    FAILS(MPI_File_open(MPI_COMM_WORLD, beside("void"), MPI_MODE_RDONLY, MPI_INFO_NULL, &file));
    EQUAL(handler_calls, 1 + (rank == 0));
    EQUAL(handler_class, MPI_ERR_NO_SUCH_FILE);
    if (!is_left_out("handler_file")) CHECK(handler_file == MPI_FILE_NULL);
    file = open_by(MPI_COMM_WORLD, file_name, MPI_MODE_CREATE | MPI_MODE_RDWR);
    MUST(MPI_File_get_errhandler(file, &got));
    CHECK(got == mine);
    if (!is_left_out("inherited_handlers")) MUST(MPI_Errhandler_free(&got));
    handler_calls = 0;
    FAILS(MPI_File_seek(file, -1, MPI_SEEK_SET));
    EQUAL(handler_calls, 1);
    MUST(MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN));
    /* The open file keeps its own. */
    FAILS(MPI_File_seek(file, -1, MPI_SEEK_SET));
    EQUAL(handler_calls, 2);
    close_and_delete(&file, file_name);
    MUST(MPI_Errhandler_free(&mine));
}

static void deleting(void) {
    fresh(file_name);
    if (rank == 0) {
        FAILS_BY(MPI_File_delete(file_name, MPI_INFO_NULL), MPI_ERR_NO_SUCH_FILE);
        raw_write(file_name, 5, "a", 1);
        EQUAL(raw_size(file_name), 6);
        MUST(MPI_File_delete(file_name, MPI_INFO_NULL));
        FAILS_BY(MPI_File_delete(file_name, MPI_INFO_NULL), MPI_ERR_NO_SUCH_FILE);
    }
    barrier();
    MPI_File file;
    FAILS_BY(MPI_File_open(MPI_COMM_SELF, file_name, MPI_MODE_RDONLY, MPI_INFO_NULL, &file),
             MPI_ERR_NO_SUCH_FILE);
    barrier();
}

static void sizes(void) {
    MPI_Offset bytes, large = (MPI_Offset)5 << 30;
    char byte = 7, read = 1;
    MPI_File file = open_fresh(file_name);
    MUST(MPI_File_get_size(file, &bytes));
    EQUAL(bytes, 0);
    barrier();
    MUST(MPI_File_set_size(file, 1000));
    MUST(MPI_File_get_size(file, &bytes));
    EQUAL(bytes, 1000);
    MUST(MPI_File_read_at(file, 999, &read, 1, MPI_BYTE, MPI_STATUS_IGNORE));
    EQUAL(read, 0);
    barrier();
    if (rank == size - 1) MUST(MPI_File_write_at(file, 2000, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE));
    MUST(MPI_File_sync(file));
    barrier();
    MUST(MPI_File_sync(file));
    MUST(MPI_File_get_size(file, &bytes));
    EQUAL(bytes, 2001);
    barrier();
    MUST(MPI_File_set_size(file, 10));
    MUST(MPI_File_get_size(file, &bytes));
    EQUAL(bytes, 10);
    barrier();
    MUST(MPI_File_set_size(file, large));
    MUST(MPI_File_get_size(file, &bytes));
    EQUAL(bytes, large);
    barrier();
    MUST(MPI_File_write_at_all(file, large - 100 + rank, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE));
    read = 1;
    MUST(MPI_File_read_at(file, 2000, &read, 1, MPI_BYTE, MPI_STATUS_IGNORE));
    EQUAL(read, 0); /* it was cut off in between */
    MUST(MPI_File_get_size(file, &bytes));
    EQUAL(bytes, large);
    FAILS_BY(MPI_File_set_size(file, -1), MPI_ERR_ARG);
    close_and_delete(&file, file_name);
}

/* In another view it is still bytes. */
static void preallocating(void) {
    MPI_Offset bytes;
    char data[100], read[100];
    MPI_File file = open_fresh(file_name);
    MUST(MPI_File_set_view(file, 40, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    MUST(MPI_File_preallocate(file, 5000));
    MUST(MPI_File_get_size(file, &bytes));
    EQUAL(bytes, 5000);
    barrier();
    MUST(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    fill(data, rank * 100, 100, 1);
    MUST(MPI_File_write_at_all(file, rank * 100, data, 100, MPI_BYTE, MPI_STATUS_IGNORE));
    /* Nothing is lost, nothing shrinks. */
    MUST(MPI_File_preallocate(file, 50));
    MUST(MPI_File_preallocate(file, 6000));
    MUST(MPI_File_get_size(file, &bytes));
    EQUAL(bytes, 6000);
    MUST(MPI_File_read_at_all(file, rank * 100, read, 100, MPI_BYTE, MPI_STATUS_IGNORE));
    SAME(read, data, 100);
    FAILS_BY(MPI_File_preallocate(file, -1), MPI_ERR_ARG);
    close_and_delete(&file, file_name);
}

static void what_a_file_says_of_itself(void) {
    MPI_File file;
    MPI_Comm odd;
    MPI_Group group, expected;
    int mode, relation;
    /* Two communicators, each opens the file by itself. */
    fresh(file_name);
    MUST(MPI_Comm_split(MPI_COMM_WORLD, rank % 2, size - rank, &odd));
    file = open_by(odd, file_name, MPI_MODE_CREATE | MPI_MODE_RDWR);
    MUST(MPI_File_get_group(file, &group));
    MUST(MPI_Comm_group(odd, &expected));
    MUST(MPI_Comm_free(&odd));
    MUST(MPI_Group_compare(group, expected, &relation));
    EQUAL(relation, MPI_IDENT);
    MUST(MPI_Group_free(&group));
    MUST(MPI_Group_free(&expected));
    MUST(MPI_File_get_amode(file, &mode));
    EQUAL(mode, MPI_MODE_CREATE | MPI_MODE_RDWR);
    MUST(MPI_File_close(&file));
    barrier();
    file = open_by(MPI_COMM_SELF, file_name, MPI_MODE_RDONLY);
    MUST(MPI_File_get_amode(file, &mode));
    EQUAL(mode, MPI_MODE_RDONLY);
    int atomic = 7;
    MUST(MPI_File_get_atomicity(file, &atomic));
    EQUAL(atomic, 0);
    MUST(MPI_File_close(&file));
    barrier();
    fresh(file_name);
}

static void views_are_told(void) {
    MPI_Offset at = -1;
    MPI_Datatype etype, filetype, vector;
    char representation[MPI_MAX_DATAREP_STRING + 1] = "";
    MPI_Aint lower, extent;
    int bytes, integers, addresses, types, combiner;
    MPI_File file = open_fresh(file_name);
    MUST(MPI_File_get_view(file, &at, &etype, &filetype, representation));
    EQUAL(at, 0);
    CHECK(etype == MPI_BYTE && filetype == MPI_BYTE && strcmp(representation, "native") == 0);
    MUST(MPI_Type_vector(3, 2, 5, MPI_INT, &vector));
    MUST(MPI_Type_commit(&vector));
    MUST(MPI_File_set_view(file, 12, MPI_INT, vector, "native", MPI_INFO_NULL));
    MUST(MPI_Type_free(&vector)); /* the file has its own */
    MUST(MPI_File_get_view(file, &at, &etype, &filetype, representation));
    EQUAL(at, 12);
    CHECK(etype == MPI_INT && strcmp(representation, "native") == 0);
    MUST(MPI_Type_size(filetype, &bytes));
    EQUAL(bytes, 24);
    MUST(MPI_Type_get_extent(filetype, &lower, &extent));
    EQUAL(lower, 0);
    EQUAL(extent, 48);
    MUST(MPI_Type_get_envelope(filetype, &integers, &addresses, &types, &combiner));
    CHECK(combiner != MPI_COMBINER_NAMED);
    MUST(MPI_Type_free(&filetype));
    int data[6] = {1, 2, 3, 4, 5, 6}, raw[15];
    if (rank == 0) MUST(MPI_File_write_at(file, 0, data, 6, MPI_INT, MPI_STATUS_IGNORE));
    barrier();
    MUST(MPI_File_sync(file));
    EQUAL(raw_read(file_name, 12, raw, sizeof raw), 48);
    EQUAL(raw[0], 1);
    EQUAL(raw[1], 2);
    EQUAL(raw[5], 3);
    EQUAL(raw[11], 6);
    close_and_delete(&file, file_name);
}

static void byte_offsets(void) {
    MPI_Offset at = -1;
    MPI_Datatype gap, with_end;
    MPI_Aint extent;
    MPI_File file = open_fresh(file_name);
    MUST(MPI_File_get_byte_offset(file, 17, &at));
    EQUAL(at, 17);
    /* Two integers, a gap of one, one integer; then a gap of two at the end. */
    int blocks[] = {2, 1}, places[] = {0, 3};
    MUST(MPI_Type_indexed(2, blocks, places, MPI_INT, &gap));
    MUST(MPI_Type_create_resized(gap, 0, 24, &with_end));
    MUST(MPI_Type_commit(&with_end));
    MUST(MPI_File_set_view(file, 100, MPI_INT, with_end, "native", MPI_INFO_NULL));
    static const int expected[] = {100, 104, 112, 124, 128, 136, 148};
    for (int i = 0; i < 7; i++) {
        MUST(MPI_File_get_byte_offset(file, i, &at));
        EQUAL(at, expected[i]);
        MUST(MPI_File_seek(file, i, MPI_SEEK_SET));
        MUST(MPI_File_get_position(file, &at));
        EQUAL(at, i);
    }
    MUST(MPI_File_get_type_extent(file, MPI_DOUBLE, &extent));
    EQUAL(extent, sizeof(double));
    MUST(MPI_File_get_type_extent(file, with_end, &extent));
    EQUAL(extent, 24);
    MUST(MPI_Type_free(&gap));
    MUST(MPI_Type_free(&with_end));
    close_and_delete(&file, file_name);
}

static void infos(void) {
    MPI_Info info, got;
    int count = -1, there;
    char value[MPI_MAX_INFO_VAL + 1] = "";
    fresh(file_name);
    MUST(MPI_Info_create(&info));
    MUST(MPI_Info_set(info, "no_such_hint", "what it may be"));
    MUST(MPI_Info_set(info, "cb_buffer_size", "1048576"));
    MUST(MPI_Info_set(info, "access_style", "read_once,write_mostly"));
    MPI_File file;
    MUST(MPI_File_open(MPI_COMM_WORLD, file_name, MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file));
    MUST(MPI_Info_set(info, "cb_buffer_size", "2097152"));
    MUST(MPI_File_get_info(file, &got));
    CHECK(got != MPI_INFO_NULL);
    MUST(MPI_Info_get_nkeys(got, &count));
    CHECK(count >= 0);
    MUST(MPI_Info_get(got, "cb_buffer_size", MPI_MAX_INFO_VAL, value, &there));
    if (there) EQUAL(atoi(value), 1048576);
    MUST(MPI_Info_free(&got));
    MUST(MPI_File_set_info(file, info));
    MUST(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", info));
    MUST(MPI_File_get_info(file, &got));
    MUST(MPI_Info_free(&got));
    MUST(MPI_Info_free(&info));
    close_and_delete(&file, file_name);
}

static void delete_on_close(void) {
    fresh(file_name);
    MPI_File file =
        open_by(MPI_COMM_WORLD, file_name, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE);
    int mode;
    MUST(MPI_File_get_amode(file, &mode));
    EQUAL(mode, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE);
    MUST(MPI_File_write_at_all(file, rank, "x", 1, MPI_BYTE, MPI_STATUS_IGNORE));
    MUST(MPI_File_close(&file));
    barrier();
    FAILS_BY(MPI_File_open(MPI_COMM_SELF, file_name, MPI_MODE_RDONLY, MPI_INFO_NULL, &file),
             MPI_ERR_NO_SUCH_FILE);
    barrier();
}

static void append(void) {
    fresh(file_name);
    if (rank == 0) raw_write(file_name, 0, "0123456789", 10);
    barrier();
    MPI_File file = open_by(MPI_COMM_WORLD, file_name, MPI_MODE_WRONLY | MPI_MODE_APPEND);
    MPI_Offset at;
    MUST(MPI_File_get_position(file, &at));
    EQUAL(at, 10);
    MUST(MPI_File_get_position_shared(file, &at));
    EQUAL(at, 10);
    barrier();
    char letter = (char)('a' + rank), read[64] = "";
    MUST(MPI_File_write_ordered(file, &letter, 1, MPI_CHAR, MPI_STATUS_IGNORE));
    MUST(MPI_File_close(&file));
    EQUAL(raw_read(file_name, 0, read, 64), 10 + size);
    CHECK(memcmp(read, "0123456789abcdefgh", 10 + (size_t)size) == 0);
    barrier();
    fresh(file_name);
}

static void unique_open(void) {
    fresh(file_name);
    MPI_File file =
        open_by(MPI_COMM_WORLD, file_name, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_UNIQUE_OPEN);
    char byte = (char)rank, read = -1;
    MUST(MPI_File_write_at(file, rank, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE));
    MUST(MPI_File_sync(file));
    barrier();
    MUST(MPI_File_sync(file));
    MUST(MPI_File_read_at(file, (rank + 1) % size, &read, 1, MPI_BYTE, MPI_STATUS_IGNORE));
    EQUAL(read, (rank + 1) % size);
    close_and_delete(&file, file_name);
}

/* The prefixes by which ROMIO's users name a kind of file system. */
static void prefixes(void) {
    if (file_name[0] != '/') return;
    char name[2048];
    snprintf(name, sizeof name, "ufs:%s", file_name);
    MPI_File file = open_fresh(name);
    MUST(MPI_File_write_at(file, rank, "a", 1, MPI_BYTE, MPI_STATUS_IGNORE));
    MUST(MPI_File_close(&file));
    barrier();
    EQUAL(raw_size(file_name), size);
    barrier();
    if (rank == 0) MUST(MPI_File_delete(name, MPI_INFO_NULL));
    barrier();
    FAILS_BY(MPI_File_delete(file_name, MPI_INFO_NULL), MPI_ERR_NO_SUCH_FILE);
}

/* Handles as Fortran has them. */
static void conversions(void) {
#ifdef MPI_ABI_VERSION
    /* Fortran's numbers are made by other names in the ABI of MPI 5. */
    MPI_File file = open_fresh(file_name);
    CHECK(MPI_File_fromint(MPI_File_toint(file)) == file);
    CHECK(MPI_File_fromint(MPI_File_toint(MPI_FILE_NULL)) == MPI_FILE_NULL);
    close_and_delete(&file, file_name);
#else
    MPI_File file = open_fresh(file_name);
    MPI_Fint number = MPI_File_c2f(file);
    CHECK(MPI_File_f2c(number) == file);
    CHECK(MPI_File_f2c(MPI_File_c2f(MPI_FILE_NULL)) == MPI_FILE_NULL);
    CHECK(number != MPI_File_c2f(MPI_FILE_NULL));
    MPI_File other = open_by(MPI_COMM_SELF, file_name, MPI_MODE_RDONLY);
    CHECK(MPI_File_c2f(other) != number);
    MUST(MPI_File_close(&other));
    close_and_delete(&file, file_name);
#endif
}

/* A file is open many times at once, and opened and closed often. */
static void many_opens(void) {
    enum { FILES = 40 };
    MPI_File files[FILES];
    fresh(file_name);
    for (int i = 0; i < FILES; i++)
        files[i] = open_by(i % 2 ? MPI_COMM_SELF : MPI_COMM_WORLD, file_name, MPI_MODE_CREATE | MPI_MODE_RDWR);
    for (int i = 0; i < FILES; i++) {
        int value = rank * FILES + i, read = -1;
        MPI_Offset at = value * (MPI_Offset)sizeof value;
        MUST(MPI_File_write_at(files[i], at, &value, 1, MPI_INT, MPI_STATUS_IGNORE));
        MUST(MPI_File_read_at(files[i], at, &read, 1, MPI_INT, MPI_STATUS_IGNORE));
        EQUAL(read, value);
    }
    for (int i = FILES - 1; i >= 0; i--) MUST(MPI_File_close(&files[i]));
    barrier();
    int *all = allocate(sizeof(int) * (size_t)(FILES * size));
    EQUAL(raw_read(file_name, 0, all, (int)sizeof(int) * FILES * size), (int)sizeof(int) * FILES * size);
    for (int i = 0; i < FILES * size; i++) EQUAL(all[i], i);
    free(all);
    barrier();
    fresh(file_name);
}

#define CASE(name) {#name, name}
RUN(MPI_THREAD_SINGLE, CASE(open_modes), CASE(open_on_a_path_through_a_file), CASE(wrong_modes),
    CASE(access_against_the_mode), CASE(size_against_the_mode), CASE(sequential), CASE(null_files),
    CASE(error_handlers), CASE(error_handler_of_no_file), CASE(deleting), CASE(sizes), CASE(preallocating),
    CASE(what_a_file_says_of_itself), CASE(views_are_told), CASE(byte_offsets), CASE(infos),
    CASE(delete_on_close), CASE(append), CASE(unique_open), CASE(prefixes), CASE(conversions), CASE(many_opens))
