/* Every function of weft.h against a running cluster: capi URL. Prints one line per test; the first failure ends it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weft.h>

static weft_fs *fs;
static const char *url;

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s: not so; errno %d (%s); %s\n", __FILE__, __LINE__, #condition, errno, \
                    strerror(errno), weft_last_error());                                                     \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

#define FAILS_WITH(error, call)      \
    do {                             \
        errno = 0;                   \
        CHECK((intptr_t)(call) <= 0); \
        CHECK(errno == (error));     \
    } while (0)

static void fill(unsigned char *data, size_t bytes, unsigned seed) {
    for (size_t at = 0; at < bytes; at++)
        data[at] = (unsigned char)((at * 2654435761u + seed * 97u) >> 11);
}

static unsigned char *pattern(size_t bytes, unsigned seed) {
    unsigned char *data = malloc(bytes);
    CHECK(data != NULL);
    fill(data, bytes, seed);
    return data;
}

static void test_version_and_errors(void) {
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", WEFT_VERSION_MAJOR, WEFT_VERSION_MINOR, WEFT_VERSION_PATCH);
    CHECK(strcmp(weft_version(), version) == 0);
    CHECK(strcmp(weft_strerror(ENOENT), strerror(ENOENT)) == 0);
    FAILS_WITH(ENOENT, weft_open(fs, "/no/such/file", O_RDONLY, 0));
    CHECK(strstr(weft_last_error(), "/no/such/file") != NULL);
    FAILS_WITH(EBADF, weft_close(NULL));
    FAILS_WITH(EINVAL, weft_open(fs, NULL, O_RDONLY, 0));
    FAILS_WITH(EBADF, weft_mkdir(NULL, "/x", 0755));
    FAILS_WITH(EINVAL, weft_connect("http://nowhere/", NULL));
}

static void test_cursor(void) {
    weft_file *file = weft_open(fs, "/cursor", O_RDWR | O_CREAT | O_EXCL, 0640);
    CHECK(file != NULL);
    FAILS_WITH(EEXIST, weft_open(fs, "/cursor", O_RDWR | O_CREAT | O_EXCL, 0640));
    CHECK(weft_write(file, "abcdef", 6) == 6);
    CHECK(weft_lseek(file, 0, SEEK_CUR) == 6);
    CHECK(weft_lseek(file, -2, SEEK_END) == 4);
    char back[8] = "";
    CHECK(weft_read(file, back, sizeof back) == 2 && memcmp(back, "ef", 2) == 0);
    CHECK(weft_read(file, back, sizeof back) == 0);
    CHECK(weft_lseek(file, 2, SEEK_SET) == 2);
    FAILS_WITH(EINVAL, weft_lseek(file, -1, SEEK_SET));
    struct iovec pieces[2] = {{back, 1}, {back + 4, 2}};
    CHECK(weft_readv(file, pieces, 2) == 3 && back[0] == 'c' && back[4] == 'd' && back[5] == 'e');
    struct stat status;
    CHECK(weft_fstat(file, &status) == 0 && status.st_size == 6 && (status.st_mode & 07777) == 0640);
    CHECK(S_ISREG(status.st_mode));
    CHECK(weft_close(file) == 0);

    weft_file *appender = weft_open(fs, "/cursor", O_WRONLY | O_APPEND, 0);
    CHECK(appender != NULL && weft_write(appender, "gh", 2) == 2);
    FAILS_WITH(EBADF, weft_pread(appender, back, 1, 0));
    CHECK(weft_close(appender) == 0);
    CHECK(weft_stat(fs, "/cursor", &status) == 0 && status.st_size == 8);
}

static void test_large(void) {
    const size_t bytes = 5 * 1024 * 1024 + 4321;
    unsigned char *out = pattern(bytes, 1), *in = malloc(bytes);
    struct weft_layout wish = {.strip_bytes = 65536, .server_count = 2, .first_server = 1};
    weft_file *file = weft_creat(fs, "/large", 0644, &wish);
    CHECK(file != NULL);
    struct weft_layout layout;
    CHECK(weft_fget_layout(file, &layout) == 0);
    CHECK(layout.strip_bytes == 65536 && layout.server_count == 2 && layout.first_server == 1);
    CHECK(weft_pwrite(file, out, bytes, 100) == (ssize_t)bytes);
    memset(in, 1, bytes);
    CHECK(weft_pread(file, in, bytes, 100) == (ssize_t)bytes && memcmp(in, out, bytes) == 0);
    CHECK(weft_pread(file, in, 200, 0) == 200);
    for (int at = 0; at < 100; at++)
        CHECK(in[at] == 0);
    CHECK(memcmp(in + 100, out, 100) == 0);
    CHECK(weft_pread(file, in, 100, (off_t)bytes + 100) == 0);
    CHECK(weft_fsync(file) == 0 && weft_fdatasync(file) == 0 && weft_flush(file) == 0);

    struct iovec cut[3] = {{in, 1000}, {in + 5000, 70000}, {in + 100000, 7}};
    CHECK(weft_preadv(file, cut, 3, 100) == 71007);
    CHECK(memcmp(in, out, 1000) == 0 && memcmp(in + 5000, out + 1000, 70000) == 0);
    CHECK(weft_pwritev(file, cut, 3, 100) == 71007);

    CHECK(weft_ftruncate(file, 150) == 0);
    CHECK(weft_pread(file, in, bytes, 0) == 150);
    CHECK(weft_truncate(fs, "/large", 1000) == 0);
    CHECK(weft_pread(file, in, bytes, 0) == 1000 && memcmp(in + 100, out, 50) == 0 && in[150] == 0 && in[999] == 0);
    CHECK(weft_punch(file, 100, 10) == 0);
    CHECK(weft_pread(file, in, 20, 95) == 20 && in[5] == 0 && in[14] == 0 && memcmp(in + 15, out + 10, 5) == 0);
    CHECK(weft_allocate(file, 0, 200000, 0) == 0);
    struct stat status;
    CHECK(weft_fstat(file, &status) == 0 && status.st_size == 200000);
    CHECK(weft_fallocate(file, 0, 0, 300000) == 0 && weft_fstat(file, &status) == 0 && status.st_size == 300000);
    CHECK(status.st_blocks * 512 >= 300000);
    CHECK(weft_fallocate(file, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 0, 20) == 0);
    FAILS_WITH(EOPNOTSUPP, weft_fallocate(file, FALLOC_FL_COLLAPSE_RANGE, 0, 4096));
    CHECK(weft_ftruncate(file, 1000000) == 0);
    CHECK(weft_fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1000000) == 0);
    CHECK(weft_pwrite(file, out, 10, 500000) == 10);
    off_t data = weft_lseek(file, 0, SEEK_DATA), hole = weft_lseek(file, 500001, SEEK_HOLE);
    CHECK(data > 400000 && data <= 500000 && hole > 500009 && hole < 600000 && weft_lseek(file, 0, SEEK_CUR) == hole);
    FAILS_WITH(ENXIO, weft_lseek(file, 700000, SEEK_DATA));
    FAILS_WITH(ENXIO, weft_lseek(file, 1000000, SEEK_HOLE));
    CHECK(weft_fstat(file, &status) == 0 && status.st_blocks * 512 < 200000);
    CHECK(weft_copy_range(file, 500000, file, 900003, 10) == 10);
    CHECK(weft_pread(file, in, 10, 900003) == 10 && memcmp(in, out, 10) == 0);
    FAILS_WITH(EINVAL, weft_copy_range(file, 0, file, 5, 10));
    CHECK(weft_close(file) == 0);
    CHECK(weft_get_layout(fs, "/large", &layout) == 0 && layout.server_count == 2);
    free(out);
    free(in);
}

static void test_lists(void) {
    enum { PIECES = 3000 };
    unsigned char *out = pattern(PIECES * 24, 2), *in = calloc(PIECES, 48);
    static void *memory[PIECES];
    static const void *source[PIECES];
    static size_t lengths[PIECES];
    static int64_t offsets[2 * PIECES], extents[2 * PIECES];
    for (int piece = 0; piece < PIECES; piece++) {
        source[piece] = out + 24 * piece;
        memory[piece] = in + 48 * piece;
        lengths[piece] = 24;
        offsets[2 * piece] = 100 * (int64_t)piece;
        extents[2 * piece] = 20;
        offsets[2 * piece + 1] = 100 * (int64_t)piece + 50;
        extents[2 * piece + 1] = 4;
    }
    weft_file *file = weft_creat(fs, "/lists", 0600, NULL);
    CHECK(file != NULL);
    CHECK(weft_writev_list(file, PIECES, source, lengths, 2 * PIECES, offsets, extents) == 24 * PIECES);
    CHECK(weft_readv_list(file, PIECES, memory, lengths, 2 * PIECES, offsets, extents) == 24 * PIECES);
    for (int piece = 0; piece < PIECES; piece++)
        CHECK(memcmp(in + 48 * piece, out + 24 * piece, 24) == 0 && in[48 * piece + 30] == 0);
    unsigned char part[4];
    CHECK(weft_pread(file, part, 4, 150) == 4 && memcmp(part, out + 24 + 20, 4) == 0);
    FAILS_WITH(EINVAL, weft_readv_list(file, 1, memory, lengths, 1, offsets, extents));

    memset(in, 0, PIECES * 48);
    weft_op *op = weft_start_readv_list(file, PIECES, memory, lengths, 2 * PIECES, offsets, extents);
    CHECK(op != NULL && weft_wait(&op) == 24 * PIECES && op == NULL);
    CHECK(memcmp(in, out, 24) == 0);
    op = weft_start_writev_list(file, PIECES, source, lengths, 2 * PIECES, offsets, extents);
    CHECK(op != NULL && weft_wait(&op) == 24 * PIECES);

    int64_t behind[2] = {100 * PIECES, 0}, two[2] = {16, 8};
    memset(in, 7, 48);
    CHECK(weft_readv_list(file, 1, memory, lengths, 2, behind, two) == 8);
    CHECK(in[0] == 0 && in[15] == 0 && memcmp(in + 16, out, 8) == 0 && in[24] == 7);
    int64_t negative[2] = {0, -1};
    FAILS_WITH(EINVAL, weft_readv_list(file, 1, memory, lengths, 2, negative, two));
    CHECK(strstr(weft_last_error(), "piece 1 of the file") != NULL);
    FAILS_WITH(EINVAL, weft_readv_list(file, 1, memory, lengths, 2, two, negative));
    FAILS_WITH(EFAULT, weft_readv_list(file, 1, NULL, lengths, 2, behind, two));
    CHECK(weft_readv_list(file, 0, NULL, NULL, 0, NULL, NULL) == 0);
    CHECK(weft_close(file) == 0);
    free(out);
    free(in);
}

static void test_access(void) {
    enum { PIECES = 200 };
    int64_t offsets[PIECES], lengths[PIECES];
    for (int piece = 0; piece < PIECES; piece++) {
        offsets[piece] = 64 * piece;
        lengths[piece] = 8;
    }
    unsigned char *out = pattern(8 * PIECES, 8), in[8 * PIECES];
    const void *source = out;
    void *memory = in;
    size_t bytes = 8 * PIECES;
    weft_file *file = weft_creat(fs, "/access", 0644, NULL);
    CHECK(weft_writev_list(file, 1, &source, &bytes, PIECES, offsets, lengths) == 8 * PIECES);
    for (int method = WEFT_METHOD_LIST; method <= WEFT_METHOD_SIEVE; method++)
        for (int sieving = WEFT_SIEVING_AUTO; sieving <= WEFT_SIEVING_MAPPED; sieving++) {
            struct weft_access access = {.method = (enum weft_method)method, .sieving = (enum weft_sieving)sieving}, now;
            struct weft_io_stats before, after;
            CHECK(weft_set_access(file, &access) == 0 && weft_get_access(file, &now) == 0);
            CHECK(now.method == access.method && now.sieving == access.sieving && now.sieve_bytes > 0);
            memset(in, 0, sizeof in);
            CHECK(weft_get_io_stats(file, &before) == 0);
            CHECK(weft_readv_list(file, 1, &memory, &bytes, PIECES, offsets, lengths) == 8 * PIECES);
            CHECK(weft_get_io_stats(file, &after) == 0);
            CHECK(memcmp(in, out, sizeof in) == 0);
            uint64_t requests = after.requests - before.requests;
            CHECK(method == WEFT_METHOD_MULTIPLE ? requests == PIECES : requests > 0 && requests < 10);
            /* A list that is regular travels as a pattern. */
            CHECK(method != WEFT_METHOD_LIST || after.request_bytes - before.request_bytes < 400 * requests);
            CHECK(after.moved_bytes >= before.moved_bytes + 8 * PIECES && after.request_bytes > before.request_bytes);
        }
    struct weft_access wrong = {.sieve_bytes = 1};
    wrong.reserved = 0;
    memset(&wrong.movement, 9, sizeof wrong.movement);
    FAILS_WITH(EINVAL, weft_set_access(file, &wrong));
    CHECK(weft_set_access(file, NULL) == 0);
    CHECK(weft_close(file) == 0);
    free(out);
}

/* The two tiles of an array in memory, of two allocations in all. */
static void test_allocations(void) {
    enum { ROWS = 64, ROW = 96, TILE = 32 };
    unsigned char *out = pattern(ROWS * ROW, 7), *in = calloc(ROWS, ROW), *apart = calloc(1, TILE);
    const void *source[ROWS + 1], *sources[2] = {apart, out};
    void *memory[ROWS + 1], *memories[2] = {apart, in};
    size_t lengths[ROWS + 1], allocated[2] = {TILE, ROWS * ROW};
    for (int row = 0; row < ROWS; row++) {
        source[row] = out + row * ROW + TILE;
        memory[row] = in + row * ROW + TILE;
        lengths[row] = TILE;
    }
    source[ROWS] = memory[ROWS] = apart;
    lengths[ROWS] = TILE;
    int64_t offset = 1000, bytes = (ROWS + 1) * TILE;
    weft_file *file = weft_creat(fs, "/allocations", 0644, NULL);
    CHECK(weft_writev_list_alloc(file, ROWS + 1, source, lengths, 2, sources, allocated, 1, &offset, &bytes) == bytes);
    CHECK(weft_readv_list_alloc(file, ROWS + 1, memory, lengths, 2, memories, allocated, 1, &offset, &bytes) == bytes);
    for (int row = 0; row < ROWS; row++)
        CHECK(memcmp(in + row * ROW + TILE, out + row * ROW + TILE, TILE) == 0 && in[row * ROW] == 0);

    weft_op *op = weft_start_writev_list_alloc(file, ROWS + 1, source, lengths, 2, sources, allocated, 1, &offset, &bytes);
    CHECK(op != NULL && weft_wait(&op) == bytes);
    op = weft_start_readv_list_alloc(file, ROWS + 1, memory, lengths, 2, memories, allocated, 1, &offset, &bytes);
    CHECK(op != NULL && weft_wait(&op) == bytes);
    /* In the papers' form there is one for each piece. */
    CHECK(weft_readv_list_alloc(file, ROWS + 1, memory, lengths, ROWS + 1, memory, lengths, 1, &offset, &bytes) == bytes);

    allocated[1] -= 1 + TILE;
    FAILS_WITH(EINVAL, weft_readv_list_alloc(file, ROWS + 1, memory, lengths, 2, memories, allocated, 1, &offset, &bytes));
    CHECK(strstr(weft_last_error(), "a piece of the memory (32 bytes at ") != NULL);
    CHECK(strstr(weft_last_error(), "is in none of the 2 allocations") != NULL);
    op = weft_start_readv_list_alloc(file, ROWS + 1, memory, lengths, 2, memories, allocated, 1, &offset, &bytes);
    FAILS_WITH(EINVAL, weft_wait(&op));
    FAILS_WITH(EINVAL, weft_writev_list_alloc(file, ROWS + 1, source, lengths, 0, NULL, NULL, 1, &offset, &bytes));
    CHECK(weft_close(file) == 0);
    free(out);
    free(in);
    free(apart);
}

static void test_view(void) {
    weft_file *file = weft_creat(fs, "/view", 0644, NULL);
    unsigned char *out = pattern(40, 3), back[64];
    struct weft_partition second = {.offset = 10, .group_bytes = 10, .stride_bytes = 30};
    CHECK(weft_set_partition(file, &second) == 0);
    CHECK(weft_write(file, out, 25) == 25);
    CHECK(weft_lseek(file, 0, SEEK_CUR) == 25);
    CHECK(weft_pread(file, back, 5, 70) == 5 && memcmp(back, out + 20, 5) == 0);
    CHECK(weft_pread(file, back, 10, 40) == 10 && memcmp(back, out + 10, 10) == 0);
    CHECK(weft_lseek(file, 5, SEEK_SET) == 5);
    CHECK(weft_read(file, back, 20) == 20 && memcmp(back, out + 5, 20) == 0);
    CHECK(weft_set_partition(file, NULL) == 0);
    CHECK(weft_lseek(file, 0, SEEK_CUR) == 0);
    CHECK(weft_read(file, back, 12) == 12 && back[0] == 0 && back[9] == 0 && back[10] == out[0]);
    struct weft_partition overlapping = {.offset = 0, .group_bytes = 10, .stride_bytes = 5};
    FAILS_WITH(EINVAL, weft_set_partition(file, &overlapping));

    /* The same view as a type, and in another order than the cursor's. */
    weft_type *group = weft_type_bytes(10), *tile = weft_type_resized(0, 30, group), *byte = weft_type_bytes(1);
    CHECK(weft_set_view(file, 10, tile) == 0);
    CHECK(weft_lseek(file, 5, SEEK_SET) == 5);
    CHECK(weft_read(file, back, 20) == 20 && memcmp(back, out + 5, 20) == 0);
    CHECK(weft_read_typed(file, back, 15, byte, 10, 0, NULL) == 15 && memcmp(back, out + 10, 15) == 0);
    CHECK(weft_lseek(file, 0, SEEK_CUR) == 25);
    CHECK(weft_set_view(file, 0, NULL) == 0);
    CHECK(weft_read_typed(file, back, 5, byte, 40, 0, NULL) == 5 && memcmp(back, out + 10, 5) == 0);
    FAILS_WITH(EINVAL, weft_set_view(file, -1, tile));
    FAILS_WITH(EINVAL, weft_read_typed(file, back, 5, byte, 40, 1, NULL));
    CHECK(weft_type_free(group) == 0 && weft_type_free(tile) == 0 && weft_type_free(byte) == 0);
    CHECK(weft_close(file) == 0);
    free(out);
}

static void check_type(weft_type *type, int64_t bytes, int64_t lower_bound, int64_t extent) {
    int64_t lower, span;
    CHECK(type != NULL && weft_type_size(type) == bytes);
    CHECK(weft_type_extent(type, &lower, &span) == 0 && lower == lower_bound && span == extent);
    CHECK(weft_type_free(type) == 0);
}

static void test_types(void) {
    weft_type *word = weft_type_bytes(4);
    const int64_t at[2] = {3, 0}, at_bytes[2] = {24, 0};
    const uint64_t two[2] = {2, 2}, five[2] = {5, 6}, one[2] = {1, 1};
    check_type(weft_type_contiguous(3, word), 12, 0, 12);
    check_type(weft_type_vector(3, 2, 4, word), 24, 0, 40);
    check_type(weft_type_hvector(3, 2, 10, word), 24, 0, 28);
    check_type(weft_type_indexed(2, at, two, word), 16, 0, 20);
    check_type(weft_type_hindexed(2, at_bytes, two, word), 16, 0, 32);
    check_type(weft_type_struct(2, at_bytes, two, (const weft_type *[]){word, word}), 16, 0, 32);
    check_type(weft_type_subarray(2, five, one, two, WEFT_ORDER_C, word), 16, 0, 120);
    check_type(weft_type_resized(-4, 100, word), 4, -4, 100);
    CHECK(weft_type_free(NULL) == 0);
    FAILS_WITH(EINVAL, weft_type_size(NULL));
    FAILS_WITH(EINVAL, weft_type_contiguous(3, NULL));
    FAILS_WITH(EINVAL, weft_type_subarray(2, two, one, five, WEFT_ORDER_C, word));
    FAILS_WITH(EINVAL, weft_type_contiguous(UINT64_MAX, word));

    /* A block of 2 by 2 words at (1, 1) of an array of 5 by 6 in memory, and a column of 4 in the file. */
    uint32_t array[5][6], back[4];
    for (uint32_t row = 0; row < 5; row++)
        for (uint32_t column = 0; column < 6; column++)
            array[row][column] = 10 * row + column;
    weft_type *block = weft_type_subarray(2, five, one, two, WEFT_ORDER_C, word);
    weft_type *column = weft_type_vector(4, 1, 100, word);
    CHECK(block != NULL && column != NULL);
    weft_file *file = weft_creat(fs, "/types", 0644, NULL);
    CHECK(weft_write_typed(file, array, 1, block, 8, 1, column) == 16);
    CHECK(weft_pread(file, &back[0], 4, 8 + 400) == 4 && back[0] == 12);
    CHECK(weft_read_typed(file, back, 4, word, 8, 1, column) == 16);
    CHECK(back[0] == 11 && back[1] == 12 && back[2] == 21 && back[3] == 22);
    memset(array, 0, sizeof array);
    weft_op *op = weft_start_read_typed(file, array, 1, block, 8, 1, column);
    CHECK(op != NULL && weft_wait(&op) == 16 && array[1][1] == 11 && array[2][2] == 22 && array[0][0] == 0);
    op = weft_start_write_typed(file, array, 1, block, 8, 4, word);
    CHECK(op != NULL && weft_wait(&op) == 16);
    FAILS_WITH(EINVAL, weft_write_typed(file, array, 2, block, 8, 1, column));
    FAILS_WITH(EINVAL, weft_write_typed(file, array, 1, NULL, 8, 1, column));
    CHECK(weft_type_free(word) == 0 && weft_type_free(block) == 0 && weft_type_free(column) == 0);
    CHECK(weft_close(file) == 0);
}

static void test_nonblocking(void) {
    enum { OPS = 16, BYTES = 300000 };
    unsigned char *out = pattern(OPS * BYTES, 4);
    unsigned char *in = weft_mem_alloc(fs, OPS * BYTES);
    CHECK(in != NULL && (uintptr_t)in % 4096 == 0 && in[BYTES] == 0);
    weft_file *file = weft_creat(fs, "/nonblocking", 0644, NULL);
    weft_op *ops[OPS + 1] = {NULL};
    ssize_t results[OPS + 1];
    for (int op = 0; op < OPS; op++)
        CHECK((ops[op] = weft_start_pwrite(file, out + op * BYTES, BYTES, (off_t)op * BYTES)) != NULL);
    CHECK(weft_wait_all(OPS + 1, ops, results) == 0);
    for (int op = 0; op < OPS; op++)
        CHECK(ops[op] == NULL && results[op] == BYTES);
    for (int op = 0; op < OPS; op++)
        CHECK((ops[op] = weft_start_pread(file, in + op * BYTES, BYTES, (off_t)op * BYTES)) != NULL);
    for (int op = 0; op < OPS; op++) {
        int done;
        ssize_t result = -1;
        while ((done = weft_test(&ops[op], &result)) == 0)
            usleep(100);
        CHECK(done == 1 && result == BYTES && ops[op] == NULL);
    }
    CHECK(memcmp(in, out, OPS * BYTES) == 0);
    FAILS_WITH(EINVAL, weft_wait(&ops[0]));
    memset(in, 0, OPS * BYTES);
    int started = 0, ended = 0;
    for (; started < 4; started++)
        CHECK((ops[started] = weft_start_pread(file, in + started * BYTES, BYTES, (off_t)started * BYTES)) != NULL);
    while (ended < OPS) {
        for (int op = 0; op < OPS; op++)
            results[op] = -2;
        ssize_t some = weft_wait_some(OPS, ops, results), seen = 0;
        for (int op = 0; op < started; op++)
            seen += ops[op] == NULL && results[op] == BYTES;
        CHECK(some >= 1 && seen == some);
        ended += some;
        for (; started < OPS && started < ended + 4; started++)
            CHECK((ops[started] = weft_start_pread(file, in + started * BYTES, BYTES, (off_t)started * BYTES)) != NULL);
    }
    CHECK(weft_wait_some(OPS, ops, results) == 0 && memcmp(in, out, OPS * BYTES) == 0);
    CHECK(weft_close(file) == 0);
    CHECK(weft_mem_free(in) == 0 && weft_mem_free(NULL) == 0);
    FAILS_WITH(EINVAL, weft_mem_free(out));
    free(out);
}

static void test_export(void) {
    char exported[WEFT_FILE_EXPORT_MAX] = {0}, back[8];
    weft_file *file = weft_creat(fs, "/export", 0600, NULL);
    CHECK(weft_pwrite(file, "shared", 6, 0) == 6);
    ssize_t bytes = weft_file_export(file, NULL, 0);
    CHECK(bytes > 0 && bytes <= WEFT_FILE_EXPORT_MAX);
    FAILS_WITH(ERANGE, weft_file_export(file, exported, (size_t)bytes - 1));
    FAILS_WITH(EFAULT, weft_file_export(file, NULL, sizeof exported));
    CHECK(weft_file_export(file, exported, sizeof exported) == bytes);
    weft_fs *other = weft_connect(url, NULL);
    CHECK(other != NULL);
    weft_file *imported = weft_file_import(other, exported, sizeof exported);
    CHECK(imported != NULL && weft_close(file) == 0 && weft_unlink(fs, "/export") == 0);
    CHECK(weft_pread(imported, back, 6, 0) == 6 && memcmp(back, "shared", 6) == 0);
    CHECK(weft_pwrite(imported, "S", 1, 0) == 1 && weft_close(imported) == 0);
    FAILS_WITH(ESTALE, weft_file_import(other, exported, sizeof exported));
    CHECK(strstr(weft_last_error(), "/export") != NULL);
    FAILS_WITH(EINVAL, weft_file_import(other, exported, (size_t)bytes - 1));
    FAILS_WITH(EFAULT, weft_file_import(other, NULL, 1));
    exported[40] ^= 1;
    FAILS_WITH(EKEYEXPIRED, weft_file_import(other, exported, sizeof exported));
    CHECK(weft_disconnect(other) == 0);
}

static void test_share(void) {
    char shared[WEFT_FILE_EXPORT_MAX] = {0}, back[8];
    struct weft_written written, all = {0, 0, 0};
    struct stat status;
    weft_file *file = weft_creat(fs, "/share", 0600, NULL);
    CHECK(weft_file_export(file, shared, sizeof shared) > 0);
    weft_fs *other = weft_connect(url, NULL);
    CHECK(other != NULL);
    FAILS_WITH(EINVAL, weft_file_import_shared(other, shared, sizeof shared));
    CHECK(strstr(weft_last_error(), "not shared") != NULL);
    ssize_t bytes = weft_file_share(file, NULL, 0);
    CHECK(bytes > 0 && bytes <= WEFT_FILE_EXPORT_MAX);
    FAILS_WITH(ERANGE, weft_file_share(file, shared, (size_t)bytes - 1));
    CHECK(weft_file_share(file, shared, sizeof shared) == bytes);
    weft_file *under = weft_file_import_shared(other, shared, sizeof shared);
    CHECK(under != NULL && weft_get_written(under, &written) == 0 && written.end_bytes == 0 && written.touch == 0);
    CHECK(weft_pwrite(under, "shared", 6, 94) == 6 && weft_fdatasync(under) == 0 && weft_fsync(under) == 0);
    CHECK(weft_pread(file, back, 6, 94) == 6 && memcmp(back, "shared", 6) == 0);
    CHECK(weft_get_written(under, &all) == 0 && all.end_bytes == 100 && all.touch == 1 && all.unsure == 0);
    FAILS_WITH(EINVAL, weft_get_written(under, NULL));
    CHECK(weft_note_written(file, &all) == 0 && weft_flush(file) == 0);
    FAILS_WITH(EINVAL, weft_note_written(file, NULL));
    CHECK(weft_ftruncate(file, 50) == 0 && weft_note_size(under, 50) == 0);
    CHECK(weft_get_written(under, &all) == 0 && all.end_bytes == 50);
    CHECK(weft_close(under) == 0 && weft_close_shared(file, &all) == 0);
    CHECK(weft_stat(fs, "/share", &status) == 0 && status.st_size == 50);
    CHECK(weft_disconnect(other) == 0);
}

static void test_counter(void) {
    char shared[WEFT_FILE_EXPORT_MAX] = {0};
    weft_file *file = weft_creat(fs, "/counter", 0600, NULL);
    CHECK(weft_file_share(file, shared, sizeof shared) > 0);
    weft_file *opened = weft_file_import(fs, shared, sizeof shared);
    weft_file *under = weft_file_import_shared(fs, shared, sizeof shared);
    CHECK(weft_fetch_add(file, 10) == 0 && weft_fetch_add(opened, 5) == 10 && weft_fetch_add(under, -3) == 15);
    CHECK(weft_fetch_set(under, 100) == 12);
    FAILS_WITH(EINVAL, weft_fetch_add(file, -101));
    CHECK(strstr(weft_last_error(), "the counter is 100") != NULL);
    FAILS_WITH(EINVAL, weft_fetch_add(file, INT64_MAX));
    FAILS_WITH(EINVAL, weft_fetch_set(file, -1));
    weft_op *ops[3] = {weft_start_fetch_add(file, 1), weft_start_fetch_add(under, 1), weft_start_pwrite(file, "x", 1, 0)};
    ssize_t before[3];
    CHECK(weft_wait_all(3, ops, before) == 0 && before[0] + before[1] == 201 && before[2] == 1);
    weft_op *op = weft_start_fetch_add(opened, 0);
    while (weft_test(&op, &before[0]) == 0)
        usleep(100);
    CHECK(op == NULL && before[0] == 102);
    weft_file *another = weft_open(fs, "/counter", O_RDONLY, 0);
    CHECK(weft_fetch_add(another, 0) == 0 && weft_close(another) == 0);
    CHECK(weft_close(under) == 0 && weft_close(opened) == 0 && weft_close(file) == 0);
}

static void test_names(void) {
    struct stat status;
    CHECK(weft_mkdir(fs, "/names", 0755) == 0);
    FAILS_WITH(EEXIST, weft_mkdir(fs, "/names", 0755));
    CHECK(weft_close(weft_creat(fs, "/names/a", 0644, NULL)) == 0);
    CHECK(weft_link(fs, "/names/a", "/names/b") == 0);
    CHECK(weft_symlink(fs, "a", "/names/c") == 0);
    char target[8];
    CHECK(weft_readlink(fs, "/names/c", target, sizeof target) == 1 && target[0] == 'a');
    CHECK(weft_lstat(fs, "/names/c", &status) == 0 && S_ISLNK(status.st_mode));
    CHECK(weft_stat(fs, "/names/c", &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink == 2);
    FAILS_WITH(ENOTEMPTY, weft_rmdir(fs, "/names"));
    CHECK(weft_access(fs, "/names/a", R_OK | W_OK) == 0);
    FAILS_WITH(ENOENT, weft_access(fs, "/names/z", F_OK));

    CHECK(weft_chmod(fs, "/names/a", 0600) == 0 && weft_chown(fs, "/names/a", 12, 34) == 0);
    CHECK(weft_lchown(fs, "/names/c", 56, (gid_t)-1) == 0);
    struct timespec times[2] = {{1000000000, 5}, {0, UTIME_OMIT}};
    CHECK(weft_utimens(fs, "/names/a", times, 0) == 0);
    CHECK(weft_stat(fs, "/names/b", &status) == 0);
    CHECK(status.st_uid == 12 && status.st_gid == 34 && (status.st_mode & 07777) == 0600);
    CHECK(status.st_atim.tv_sec == 1000000000 && status.st_atim.tv_nsec == 5 && status.st_mtim.tv_sec > 1000000000);
    CHECK(weft_lstat(fs, "/names/c", &status) == 0 && status.st_uid == 56);

    FAILS_WITH(EEXIST, weft_rename(fs, "/names/a", "/names/c", 1));
    CHECK(weft_rename(fs, "/names/a", "/names/d", 0) == 0);
    CHECK(weft_unlink(fs, "/names/b") == 0 && weft_unlink(fs, "/names/c") == 0 && weft_unlink(fs, "/names/d") == 0);
    FAILS_WITH(EISDIR, weft_unlink(fs, "/names"));
    CHECK(weft_rmdir(fs, "/names") == 0);
}

static void test_directories(void) {
    enum { FILES = 1200 };
    char path[64];
    static char seen[FILES];
    CHECK(weft_mkdir(fs, "/many", 0755) == 0);
    for (int file = 0; file < FILES; file++) {
        snprintf(path, sizeof path, "/many/%d", file);
        CHECK(weft_close(weft_creat(fs, path, 0644, NULL)) == 0);
    }
    weft_dir *dir = weft_opendir(fs, "/many");
    CHECK(dir != NULL);
    const struct weft_dirent *entry;
    uint64_t middle = 0;
    int count = 0, after_middle = 0;
    while ((entry = weft_readdir(dir)) != NULL) {
        CHECK(entry->type == DT_REG && entry->ino != 0);
        seen[atoi(entry->name)]++;
        if (++count == FILES / 2)
            middle = entry->cookie;
    }
    CHECK(errno == 0 && count == FILES);
    for (int file = 0; file < FILES; file++)
        CHECK(seen[file] == 1);
    CHECK(weft_seekdir(dir, middle) == 0);
    while (weft_readdir(dir) != NULL)
        after_middle++;
    CHECK(after_middle == FILES / 2);

    /* With attributes, from where the names have come to. */
    struct stat status, same;
    weft_file *written = weft_open(fs, "/many/7", O_WRONLY, 0);
    CHECK(weft_pwrite(written, "data", 4, 1000) == 4);
    CHECK(weft_seekdir(dir, 0) == 0);
    for (count = 0; count < 10; count++)
        CHECK(weft_readdir(dir) != NULL);
    for (; (entry = weft_readdir_plus(dir, &status)) != NULL; count++) {
        CHECK(status.st_ino == entry->ino && S_ISREG(status.st_mode) && status.st_nlink == 1);
        if (strcmp(entry->name, "7") == 0) {
            CHECK(weft_lstat(fs, "/many/7", &same) == 0 && same.st_size == 1004);
            CHECK(status.st_size == same.st_size && status.st_mtim.tv_nsec == same.st_mtim.tv_nsec);
        } else {
            CHECK(status.st_size == 0);
        }
    }
    CHECK(errno == 0 && count == FILES);
    CHECK(weft_seekdir(dir, 0) == 0 && weft_readdir_plus(dir, &status) != NULL && weft_readdir(dir) != NULL);
    FAILS_WITH(EINVAL, weft_readdir_plus(dir, NULL));
    CHECK(weft_close(written) == 0);
    CHECK(weft_closedir(dir) == 0);
    FAILS_WITH(ENOTDIR, weft_opendir(fs, "/many/0"));

    struct weft_layout layout, wish = {.strip_bytes = 131072, .server_count = 1, .first_server = -1};
    FAILS_WITH(ENODATA, weft_get_layout(fs, "/many", &layout));
    CHECK(weft_set_layout(fs, "/many", &wish) == 0);
    CHECK(weft_close(weft_creat(fs, "/many/striped", 0644, NULL)) == 0);
    CHECK(weft_get_layout(fs, "/many/striped", &layout) == 0);
    CHECK(layout.strip_bytes == 131072 && layout.server_count == 1);
    CHECK(weft_set_layout(fs, "/many", NULL) == 0);
}

static void test_xattrs(void) {
    char value[16], names[64];
    CHECK(weft_close(weft_creat(fs, "/xattrs", 0644, NULL)) == 0);
    CHECK(weft_setxattr(fs, "/xattrs", "user.one", "1", 1, 0) == 0);
    CHECK(weft_setxattr(fs, "/xattrs", "user.two", "22", 2, 1) == 0);
    FAILS_WITH(EEXIST, weft_setxattr(fs, "/xattrs", "user.two", "22", 2, 1));
    CHECK(weft_getxattr(fs, "/xattrs", "user.two", value, sizeof value) == 2 && memcmp(value, "22", 2) == 0);
    CHECK(weft_getxattr(fs, "/xattrs", "user.two", NULL, 0) == 2);
    FAILS_WITH(ERANGE, weft_getxattr(fs, "/xattrs", "user.two", value, 1));
    FAILS_WITH(ENODATA, weft_getxattr(fs, "/xattrs", "user.three", value, sizeof value));
    CHECK(weft_listxattr(fs, "/xattrs", names, sizeof names) == 18);
    CHECK(memcmp(names, "user.one\0user.two\0", 18) == 0 || memcmp(names, "user.two\0user.one\0", 18) == 0);
    CHECK(weft_removexattr(fs, "/xattrs", "user.one") == 0);
    CHECK(weft_listxattr(fs, "/xattrs", NULL, 0) == 9);
}

static void test_space(void) {
    struct statvfs space;
    CHECK(weft_statvfs(fs, &space) == 0);
    CHECK(space.f_blocks > 0 && space.f_bavail <= space.f_blocks && space.f_namemax == 255);
    CHECK(weft_sync(fs) == 0);
}

static void test_memory(void) {
    enum { BYTES = 1 << 20 };
    unsigned char *array = pattern(BYTES, 9);
    CHECK(weft_mem_register(fs, array, BYTES) == 0);
    CHECK(weft_mem_register(fs, array, BYTES) == 0);
    weft_file *file = weft_creat(fs, "/memory", 0644, NULL);
    CHECK(weft_pwrite(file, array + 100, 500000, 0) == 500000);
    unsigned char *back = weft_mem_alloc(fs, BYTES);
    CHECK(back != NULL && weft_mem_register(fs, back + 4096, 8192) == 0);
    CHECK(weft_pread(file, back, 500000, 0) == 500000 && memcmp(back, array + 100, 500000) == 0);
    CHECK(weft_mem_unregister(back + 4096) == 0 && weft_mem_free(back) == 0);

    /* A child has the memory, and nothing registered. */
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        FAILS_WITH(EINVAL, weft_mem_unregister(array));
        CHECK(weft_mem_register(fs, array, BYTES) == 0);
        CHECK(weft_pwrite(file, array, BYTES, 1 << 20) == BYTES);
        CHECK(weft_mem_unregister(array) == 0);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);

    CHECK(weft_mem_unregister(array) == 0);
    CHECK(weft_pread(file, array, BYTES, 1 << 20) == BYTES);
    CHECK(weft_mem_unregister(array) == 0);
    FAILS_WITH(EINVAL, weft_mem_unregister(array));
    CHECK(strstr(weft_last_error(), "unregister") != NULL);
    FAILS_WITH(EINVAL, weft_mem_register(fs, NULL, BYTES));
    FAILS_WITH(EINVAL, weft_mem_register(fs, array, 0));
    FAILS_WITH(EINVAL, weft_mem_register(fs, array, SIZE_MAX));
    FAILS_WITH(EBADF, weft_mem_register(NULL, array, BYTES));
    CHECK(weft_close(file) == 0);
    free(array);
}

struct part {
    weft_file *file;
    int number;
};

static void *write_and_read_part(void *argument) {
    enum { BYTES = 400001 };
    struct part *part = argument;
    unsigned char *out = pattern(BYTES, 10 + (unsigned)part->number), *in = malloc(BYTES);
    for (int round = 0; round < 5; round++) {
        CHECK(weft_pwrite(part->file, out, BYTES, (off_t)part->number * BYTES) == BYTES);
        CHECK(weft_pread(part->file, in, BYTES, (off_t)part->number * BYTES) == BYTES && memcmp(in, out, BYTES) == 0);
    }
    free(out);
    free(in);
    return NULL;
}

static void test_threads(void) {
    enum { THREADS = 4 };
    weft_file *file = weft_creat(fs, "/threads", 0644, NULL);
    pthread_t threads[THREADS];
    struct part parts[THREADS];
    for (int thread = 0; thread < THREADS; thread++) {
        parts[thread] = (struct part){file, thread};
        CHECK(pthread_create(&threads[thread], NULL, write_and_read_part, &parts[thread]) == 0);
    }
    for (int thread = 0; thread < THREADS; thread++)
        CHECK(pthread_join(threads[thread], NULL) == 0);
    CHECK(weft_close(file) == 0);
}

static struct flock bytes(short type, off_t start, off_t length) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
    return lock;
}

static void test_locks(void) {
    weft_file *file = weft_creat(fs, "/locks", 0644, NULL);
    weft_file *other = weft_open(fs, "/locks", O_RDWR, 0);
    CHECK(file != NULL && other != NULL);
    /* Of two open files: they keep each other away. */
    struct flock lock = bytes(F_WRLCK, 100, 50);
    CHECK(weft_fcntl_lock(file, F_OFD_SETLK, &lock) == 0);
    lock = bytes(F_RDLCK, 149, 10);
    FAILS_WITH(EAGAIN, weft_fcntl_lock(other, F_OFD_SETLK, &lock));
    CHECK(weft_fcntl_lock(other, F_OFD_GETLK, &lock) == 0);
    CHECK(lock.l_type == F_WRLCK && lock.l_whence == SEEK_SET && lock.l_start == 100 && lock.l_len == 50);
    lock = bytes(F_RDLCK, 150, 10);
    CHECK(weft_fcntl_lock(other, F_OFD_SETLKW, &lock) == 0);
    lock = bytes(F_UNLCK, 100, 0);
    CHECK(weft_fcntl_lock(file, F_OFD_SETLK, &lock) == 0);
    /* From an end backwards, and to the end of any file. */
    lock = bytes(F_WRLCK, 50, -50);
    CHECK(weft_fcntl_lock(file, F_OFD_SETLK, &lock) == 0);
    lock = bytes(F_WRLCK, 0, 0);
    CHECK(weft_fcntl_lock(other, F_OFD_GETLK, &lock) == 0 && lock.l_start == 0 && lock.l_len == 50);
    /* Of the process: one owner, which another process meets. */
    lock = bytes(F_WRLCK, 1000, 0);
    CHECK(weft_fcntl_lock(file, F_SETLK, &lock) == 0 && weft_fcntl_lock(other, F_SETLK, &lock) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        weft_file *again = weft_open(fs, "/locks", O_RDWR, 0);
        lock = bytes(F_WRLCK, 1000, 1);
        FAILS_WITH(EAGAIN, weft_fcntl_lock(again, F_SETLK, &lock));
        CHECK(weft_fcntl_lock(again, F_GETLK, &lock) == 0 && lock.l_type == F_WRLCK && lock.l_len == 0);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* Whole files, apart from bytes. */
    CHECK(weft_flock(file, LOCK_EX) == 0);
    FAILS_WITH(EAGAIN, weft_flock(other, LOCK_SH | LOCK_NB));
    CHECK(weft_flock(file, LOCK_UN) == 0 && weft_flock(other, LOCK_SH | LOCK_NB) == 0);
    lock = bytes(F_WRLCK, -1, 1);
    FAILS_WITH(EINVAL, weft_fcntl_lock(file, F_SETLK, &lock));
    lock = bytes(F_WRLCK, INT64_MAX, 2);
    FAILS_WITH(EOVERFLOW, weft_fcntl_lock(file, F_SETLK, &lock));
    lock = bytes(7, 0, 1);
    FAILS_WITH(EINVAL, weft_fcntl_lock(file, F_SETLK, &lock));
    FAILS_WITH(EINVAL, weft_fcntl_lock(file, F_GETFL, &lock));
    FAILS_WITH(EINVAL, weft_flock(file, 0));
    CHECK(weft_close(other) == 0 && weft_close(file) == 0);
}

static void test_fork(void) {
    weft_file *file = weft_creat(fs, "/fork", 0644, NULL);
    CHECK(weft_pwrite(file, "parent", 6, 0) == 6);
    pid_t child = fork();
    CHECK(child >= 0);
    char back[16] = "";
    if (child == 0) {
        CHECK(weft_pread(file, back, 6, 0) == 6 && memcmp(back, "parent", 6) == 0);
        CHECK(weft_pwrite(file, "child", 5, 100) == 5);
        CHECK(weft_close(file) == 0);
        _exit(0);
    }
    int status;
    CHECK(weft_pread(file, back, 6, 0) == 6);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(weft_pread(file, back, 16, 100) == 5 && memcmp(back, "child", 5) == 0);
    CHECK(weft_close(file) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    url = argv[1];
    fs = weft_connect(url, NULL);
    CHECK(fs != NULL);
    const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {
        {"version and errors", test_version_and_errors}, {"cursor", test_cursor},
        {"large", test_large}, {"lists", test_lists},
        {"allocations", test_allocations}, {"access", test_access},
        {"view", test_view}, {"types", test_types}, {"nonblocking", test_nonblocking},
        {"export", test_export}, {"share", test_share}, {"counter", test_counter},
        {"names", test_names}, {"directories", test_directories},
        {"xattrs", test_xattrs}, {"space", test_space},
        {"memory", test_memory},
        {"threads", test_threads}, {"locks", test_locks}, {"fork", test_fork},
    };
    for (size_t test = 0; test < sizeof tests / sizeof *tests; test++) {
        tests[test].run();
        printf("ok %s\n", tests[test].name);
        fflush(stdout);
    }
    CHECK(weft_disconnect(fs) == 0);
    return 0;
}
