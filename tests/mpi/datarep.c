/* Data representations: native, internal, external32 and those of users. */
#include "typemap.h"

static void native(void) {
    MPI_File file = open_fresh(file_name);
    int value = 0x01020304 + rank, read = 0;
    MUST(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    MUST(MPI_File_write_at_all(file, rank, &value, 1, MPI_INT, MPI_STATUS_IGNORE));
    MUST(MPI_File_sync(file));
    barrier();
    EQUAL(raw_read(file_name, rank * 4, &read, 4), 4);
    EQUAL(read, value);
    close_and_delete(&file, file_name);
}

/* How it is stored is the library's choice; it must only find it again. */
static void internal(void) {
    MPI_File file = open_fresh(file_name);
    double values[50], read[50];
    char representation[MPI_MAX_DATAREP_STRING + 1] = "";
    MPI_Offset start;
    MPI_Datatype etype, filetype, vector;
    MPI_Aint extent;
    MUST(MPI_Type_vector(5, 1, 2, MPI_DOUBLE, &vector));
    MUST(MPI_Type_commit(&vector));
    MUST(MPI_File_set_view(file, 0, MPI_DOUBLE, MPI_DOUBLE, "internal", MPI_INFO_NULL));
    MUST(MPI_File_get_view(file, &start, &etype, &filetype, representation));
    CHECK(strcmp(representation, "internal") == 0);
    MUST(MPI_File_get_type_extent(file, MPI_DOUBLE, &extent));
    CHECK(extent > 0);
    for (int i = 0; i < 50; i++) values[i] = rank * 50 + i + 0.5;
    MUST(MPI_File_write_at_all(file, rank * 50, values, 50, MPI_DOUBLE, MPI_STATUS_IGNORE));
    MUST(MPI_File_read_at_all(file, rank * 50, read, 50, MPI_DOUBLE, MPI_STATUS_IGNORE));
    SAME(read, values, sizeof values);
    MUST(MPI_File_read_at(file, rank * 50, read, 5, vector, MPI_STATUS_IGNORE));
    CHECK(read[0] == values[0] && read[2] == values[1] && read[8] == values[4]);
    MUST(MPI_Type_free(&vector));
    close_and_delete(&file, file_name);
}

static void in_big_endian(unsigned char *to, const void *from, int bytes) {
    for (int i = 0; i < bytes; i++) to[i] = ((const unsigned char *)from)[bytes - 1 - i];
}

#define EXTERNAL_OF(mpi, type, bytes, ...) \
    do { \
        type values[] = {__VA_ARGS__}, read[sizeof values / sizeof *values]; \
        int count = sizeof values / sizeof *values; \
        unsigned char raw[256], should[256]; \
        MPI_Status status; \
        MPI_Aint extent = -1; \
        MPI_Offset start = rank * 1024 + 3; \
        case_name = "external32 " #mpi; \
        MUST(MPI_File_set_view(file, start, mpi, mpi, "external32", MPI_INFO_NULL)); \
        MUST(MPI_File_get_type_extent(file, mpi, &extent)); \
        EQUAL(extent, bytes); \
        MUST(MPI_File_write_at(file, 2, values, count, mpi, &status)); \
        COUNTS(&status, mpi, count); \
        MUST(MPI_File_sync(file)); \
        for (int i = 0; i < count; i++) in_big_endian(should + i * bytes, &values[i], bytes); \
        EQUAL(raw_read(file_name, start + 2 * bytes, raw, count * bytes), count * bytes); \
        SAME(raw, should, count * bytes); \
        memset(read, 0, sizeof read); \
        MUST(MPI_File_read_at_all(file, 2, read, count, mpi, &status)); \
        COUNTS(&status, mpi, count); \
        SAME(read, values, sizeof values); \
    } while (0)

/* Big-endian, of the sizes of the standard, without padding. */
static void external32(void) {
    MPI_File file = open_fresh(file_name);
    EXTERNAL_OF(MPI_INT, int, 4, 1, 0x01020304, -2);
    EXTERNAL_OF(MPI_SHORT, short, 2, 1, 0x0102, -3);
    EXTERNAL_OF(MPI_LONG_LONG, long long, 8, 1, 0x0102030405060708, -4);
    EXTERNAL_OF(MPI_LONG, long, 4, 1, 0x01020304, -5);
    EXTERNAL_OF(MPI_UNSIGNED_LONG, unsigned long, 4, 1, 0x01020304);
    EXTERNAL_OF(MPI_FLOAT, float, 4, 1.0f, -0.375f, 3e30f);
    EXTERNAL_OF(MPI_DOUBLE, double, 8, 1.0, -0.375, 1e300);
    EXTERNAL_OF(MPI_CHAR, char, 1, 'a', 'b', 'c', 'd', 'e');
    EXTERNAL_OF(MPI_BYTE, unsigned char, 1, 1, 2, 255);
    EXTERNAL_OF(MPI_UINT16_T, uint16_t, 2, 1, 65535);
    EXTERNAL_OF(MPI_INT64_T, int64_t, 8, -1, 77);
    case_name = "external32";
    close_and_delete(&file, file_name);
}

/* What is in the file is what MPI_Pack_external makes of memory, also for mixed types. */
static void external32_of_structures(void) {
    struct item {
        char letter;
        double real;
        short little[3];
        int number;
    } items[4], read[4];
    int blocks[] = {1, 1, 3, 1};
    MPI_Aint places[] = {0, 8, 16, 24}, packed_bytes, at = 0;
    MPI_Datatype parts[] = {MPI_CHAR, MPI_DOUBLE, MPI_SHORT, MPI_INT}, structure, type;
    CHECK(sizeof(struct item) == 32);
    MUST(MPI_Type_create_struct(4, blocks, places, parts, &structure));
    MUST(MPI_Type_create_resized(structure, 0, sizeof(struct item), &type));
    MUST(MPI_Type_commit(&type));
    memset(items, 0, sizeof items);
    for (int i = 0; i < 4; i++)
        items[i] = (struct item){(char)('a' + i), i + 0.25, {(short)i, -1, 300}, rank * 100 + i};
    MPI_File file = open_fresh(file_name);
    MUST(MPI_File_set_view(file, rank * 200, MPI_BYTE, MPI_BYTE, "external32", MPI_INFO_NULL));
    MPI_Status status;
    MUST(MPI_File_write_at_all(file, 0, items, 4, type, &status));
    COUNTS(&status, type, 4);
    MUST(MPI_File_sync(file));
    barrier();
    /* MPI_Pack_external crashes in MPICH where the type is a structure, so its parts are converted here. */
    packed_bytes = 4 * (1 + 8 + 6 + 4);
    unsigned char *packed = allocate((size_t)packed_bytes), *raw = allocate((size_t)packed_bytes);
    for (int i = 0; i < 4; i++) {
        MUST(MPI_Pack_external("external32", &items[i].letter, 1, MPI_CHAR, packed, packed_bytes, &at));
        MUST(MPI_Pack_external("external32", &items[i].real, 1, MPI_DOUBLE, packed, packed_bytes, &at));
        MUST(MPI_Pack_external("external32", items[i].little, 3, MPI_SHORT, packed, packed_bytes, &at));
        MUST(MPI_Pack_external("external32", &items[i].number, 1, MPI_INT, packed, packed_bytes, &at));
    }
    EQUAL(at, packed_bytes);
    EQUAL(raw_read(file_name, rank * 200, raw, (int)packed_bytes), packed_bytes);
    SAME(raw, packed, packed_bytes);
    memset(read, 0, sizeof read);
    MUST(MPI_File_read_at(file, 0, read, 4, type, &status));
    COUNTS(&status, type, 4);
    for (int i = 0; i < 4; i++) {
        CHECK(read[i].letter == items[i].letter && read[i].real == items[i].real);
        CHECK(memcmp(read[i].little, items[i].little, 6) == 0 && read[i].number == items[i].number);
    }
    free(packed);
    free(raw);
    MUST(MPI_Type_free(&structure));
    MUST(MPI_Type_free(&type));
    close_and_delete(&file, file_name);
}

/* Through a view with gaps, all ranks' shares woven into each other; all kinds of access. */
static void external32_through_views(void) {
    MPI_Datatype vector;
    MPI_File file = open_fresh(file_name);
    int values[24], read[24], *raw = allocate((size_t)size * 96 + 4);
    MUST(MPI_Type_create_resized(MPI_INT, 0, 4 * size, &vector));
    MUST(MPI_Type_commit(&vector));
    MUST(MPI_File_set_view(file, rank * 4, MPI_INT, vector, "external32", MPI_INFO_NULL));
    for (int i = 0; i < 24; i++) values[i] = i * size + rank;
    MPI_Status status;
    MPI_Request request;
    MUST(MPI_File_write_all(file, values, 12, MPI_INT, &status));
    COUNTS(&status, MPI_INT, 12);
    MUST(MPI_File_iwrite(file, values + 12, 6, MPI_INT, &request));
    MUST(MPI_Wait(&request, &status));
    COUNTS(&status, MPI_INT, 6);
    MUST(MPI_File_write_all_begin(file, values + 18, 6, MPI_INT));
    MUST(MPI_File_write_all_end(file, values + 18, &status));
    MUST(MPI_File_sync(file));
    barrier();
    EQUAL(raw_read(file_name, 0, raw, size * 96 + 4), size * 96);
    for (int i = 0; i < size * 24; i++) {
        unsigned char big[4];
        in_big_endian(big, &i, 4);
        SAME(raw + i, big, 4);
    }
    MUST(MPI_File_seek(file, 0, MPI_SEEK_SET));
    MUST(MPI_File_iread(file, read, 12, MPI_INT, &request));
    MUST(MPI_Wait(&request, &status));
    COUNTS(&status, MPI_INT, 12);
    MUST(MPI_File_read_all(file, read + 12, 12, MPI_INT, &status));
    SAME(read, values, sizeof values);
    if (!is_left_out("eof")) {
        MUST(MPI_File_read_at(file, 20, read, 10, MPI_INT, &status));
        COUNTS(&status, MPI_INT, 4);
    }
    MUST(MPI_Type_free(&vector));
    free(raw);
    close_and_delete(&file, file_name);
}

static void unknown(void) {
    MPI_File file = open_fresh(file_name);
    FAILS_BY(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "no such thing", MPI_INFO_NULL),
             MPI_ERR_UNSUPPORTED_DATAREP);
    /* The view is as before. */
    MPI_Offset start;
    MPI_Datatype etype, filetype;
    char representation[MPI_MAX_DATAREP_STRING + 1] = "";
    MUST(MPI_File_get_view(file, &start, &etype, &filetype, representation));
    CHECK(etype == MPI_BYTE && strcmp(representation, "native") == 0);
    MUST(MPI_File_write_at_all(file, rank, "a", 1, MPI_BYTE, MPI_STATUS_IGNORE));
    close_and_delete(&file, file_name);
}

static int extent_function(MPI_Datatype type, MPI_Aint *extent, void *state) {
    (void)state;
    MPI_Aint lower;
    return MPI_Type_get_extent(type, &lower, extent);
}

/* A representation of a user's may be unsupported, and says so. */
static void of_users(void) {
    int code = MPI_Register_datarep("weft test", MPI_CONVERSION_FN_NULL, MPI_CONVERSION_FN_NULL, extent_function, NULL);
    if (code != MPI_SUCCESS) {
        CHECK(class_of(code) == MPI_ERR_UNSUPPORTED_DATAREP || class_of(code) == MPI_ERR_UNSUPPORTED_OPERATION);
        return;
    }
    FAILS_BY(MPI_Register_datarep("weft test", MPI_CONVERSION_FN_NULL, MPI_CONVERSION_FN_NULL, extent_function, NULL),
             MPI_ERR_DUP_DATAREP);
    MPI_File file = open_fresh(file_name);
    code = MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "weft test", MPI_INFO_NULL);
    if (code != MPI_SUCCESS) EQUAL(class_of(code), MPI_ERR_UNSUPPORTED_DATAREP);
    close_and_delete(&file, file_name);
}

#define CASE(name) {#name, name}
RUN(MPI_THREAD_SINGLE, CASE(native), CASE(internal), CASE(external32), CASE(external32_of_structures),
    CASE(external32_through_views), CASE(unknown), CASE(of_users))
