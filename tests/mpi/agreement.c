/* Collective calls that need no agreement of the processes, those that do, and hints that change between them.
 *
 *   mpirun -n 4 agreement FILE [CASE ...]      tests/tests/mpi.rs counts agreements and requests */
#include <sys/resource.h>

#include "check.h"

enum { PIECE = 3000, BLOCK = 64 << 10 };

/* One rank after the other: each calls when the one before has returned. A call that waits for others hangs here. */
static void wait_for_turn(void) {
    if (rank > 0) MUST(MPI_Recv(NULL, 0, MPI_BYTE, rank - 1, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
}

static void pass_turn(void) {
    if (rank + 1 < size) MUST(MPI_Send(NULL, 0, MPI_BYTE, rank + 1, 7, MPI_COMM_WORLD));
    barrier();
}

/* Rank r has r pieces: rank 0 has nothing. */
static void write_in_turn(MPI_File file, MPI_Offset at, int bytes, unsigned salt) {
    unsigned char *data = allocate((size_t)bytes), *found = allocate((size_t)bytes);
    MPI_Status status;
    fill(data, at, (size_t)bytes, salt);
    wait_for_turn();
    MUST(MPI_File_write_at_all(file, at, data, bytes, MPI_BYTE, &status));
    COUNTS(&status, MPI_BYTE, bytes);
    MUST(MPI_File_read_at_all(file, at, found, bytes, MPI_BYTE, &status));
    COUNTS(&status, MPI_BYTE, bytes);
    SAME(found, data, bytes);
    pass_turn();
    free(data), free(found);
}

static void straight_without_a_view(void) {
    MPI_File file = open_fresh(file_name);
    MPI_Offset begin = (MPI_Offset)PIECE * rank * (rank - 1) / 2;
    write_in_turn(file, begin, PIECE * rank, 1);
    write_in_turn(file, begin, PIECE * rank, 2);
    EQUAL(raw_size(file_name), PIECE * size * (size - 1) / 2);
    close_and_delete(&file, file_name);
}

/* Pieces in memory alone need no exchange. */
static void straight_from_pieces_of_memory(void) {
    MPI_File file = open_fresh(file_name);
    MPI_Datatype spread;
    unsigned char data[2 * PIECE], found[PIECE];
    MUST(MPI_Type_vector(PIECE, 1, 2, MPI_BYTE, &spread));
    MUST(MPI_Type_commit(&spread));
    for (int i = 0; i < PIECE; i++) data[2 * i] = pattern((long long)rank * PIECE + i, 3);
    wait_for_turn();
    MUST(MPI_File_write_at_all(file, (MPI_Offset)rank * PIECE, data, rank % 2, spread, MPI_STATUS_IGNORE));
    pass_turn();
    if (rank % 2) {
        EQUAL(raw_read(file_name, (MPI_Offset)rank * PIECE, found, PIECE), PIECE);
        for (int i = 0; i < PIECE; i++) EQUAL(found[i], pattern((long long)rank * PIECE + i, 3));
    }
    MUST(MPI_Type_free(&spread));
    close_and_delete(&file, file_name);
}

/* Each rank has every so many'th large block; the last one has none. */
static void straight_in_views_of_large_blocks(void) {
    MPI_File file = open_fresh(file_name);
    MPI_Datatype blocks;
    int count = rank + 1 < size ? 4 : 0;
    MUST(MPI_Type_vector(count, BLOCK, BLOCK * (size - 1), MPI_BYTE, &blocks));
    MUST(MPI_Type_commit(&blocks));
    MUST(MPI_File_set_view(file, (MPI_Offset)rank * BLOCK, MPI_BYTE, blocks, "native", MPI_INFO_NULL));
    write_in_turn(file, 0, count * BLOCK, 4);
    MUST(MPI_Type_free(&blocks));
    close_and_delete(&file, file_name);
}

/* A rank with wrong arguments fails by itself; the others go on. */
static void straight_past_a_rank_that_fails(void) {
    MPI_File file = open_fresh(file_name);
    int wrong = size - 1;
    if (rank == wrong) {
        FAILS_BY(MPI_File_write_at_all(file, 0, NULL, -1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_COUNT, MPI_ERR_ARG);
        FAILS(MPI_File_read_at_all(file, -5, NULL, 0, MPI_BYTE, MPI_STATUS_IGNORE));
    } else {
        unsigned char data = (unsigned char)rank, found = 77;
        MUST(MPI_File_write_at_all(file, rank, &data, 1, MPI_BYTE, MPI_STATUS_IGNORE));
        MUST(MPI_File_read_at_all(file, rank, &found, 1, MPI_BYTE, MPI_STATUS_IGNORE));
        EQUAL(found, rank);
    }
    close_and_delete(&file, file_name);
}

/* The view of one rank alone has small pieces: all of them agree, and again none when it is large. */
static void agreed_where_one_view_is_fine(void) {
    MPI_File file = open_fresh(file_name);
    MPI_Datatype pieces;
    int fine = 1 % size;
    MUST(MPI_Type_vector(100, 8, 16, MPI_BYTE, &pieces));
    MUST(MPI_Type_commit(&pieces));
    MPI_Datatype seen = rank == fine ? pieces : MPI_BYTE;
    MUST(MPI_File_set_view(file, (MPI_Offset)rank * 10000, MPI_BYTE, seen, "native", MPI_INFO_NULL));
    unsigned char data[800], found[800];
    fill(data, rank, sizeof data, 5);
    for (int turn = 0; turn < 3; turn++) {
        int bytes = rank == (turn + 2) % size ? 0 : (int)sizeof data;
        MUST(MPI_File_write_at_all(file, 0, data, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
        MUST(MPI_File_read_at_all(file, 0, found, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
        SAME(found, data, bytes);
    }
    MUST(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    write_in_turn(file, (MPI_Offset)rank * 10000, 100, 6);
    MUST(MPI_Type_free(&pieces));
    close_and_delete(&file, file_name);
}

static MPI_Info info_of(const char *key, const char *value) {
    MPI_Info info;
    MUST(MPI_Info_create(&info));
    MUST(MPI_Info_set(info, "weft_method", "two_phase"));
    if (key) MUST(MPI_Info_set(info, (char *)key, (char *)value));
    return info;
}

enum { CALLS = 2, ALL_BYTES = 1 << 20 };

/* Exchanges of ALL_BYTES by each rank, in pieces. The hint changes behind the first, by set_info or set_view. */
static void exchange_with(const char *suffix, const char *key, const char *value, int by_view) {
    const char *name = beside(suffix);
    MPI_Info first = info_of(NULL, NULL), then = info_of(key, value);
    MPI_File file;
    MPI_Datatype pieces;
    fresh(name);
    MUST(MPI_File_open(MPI_COMM_WORLD, (char *)name, MPI_MODE_CREATE | MPI_MODE_RDWR, first, &file));
    MUST(MPI_Type_vector(ALL_BYTES / 1024, 1024, 1024 * size, MPI_BYTE, &pieces));
    MUST(MPI_Type_commit(&pieces));
    unsigned char *data = allocate(ALL_BYTES), *found = allocate(ALL_BYTES);
    for (int call = 0; call < CALLS; call++) {
        MPI_Info info = by_view && call > 0 ? then : MPI_INFO_NULL;
        MUST(MPI_File_set_view(file, rank * 1024, MPI_BYTE, pieces, "native", info));
        if (!by_view && call > 0) MUST(MPI_File_set_info(file, then));
        fill(data, (MPI_Offset)rank * ALL_BYTES, ALL_BYTES, (unsigned)call);
        MUST(MPI_File_write_at_all(file, 0, data, ALL_BYTES, MPI_BYTE, MPI_STATUS_IGNORE));
        MUST(MPI_File_read_at(file, 0, found, ALL_BYTES, MPI_BYTE, MPI_STATUS_IGNORE));
        SAME(found, data, ALL_BYTES);
    }
    free(data), free(found);
    MUST(MPI_Type_free(&pieces));
    MUST(MPI_Info_free(&first));
    MUST(MPI_Info_free(&then));
    close_and_delete(&file, name);
}

static void hints_that_change(void) {
    exchange_with("same", "cb_buffer_size", "1048576", 0);
    exchange_with("info", "cb_buffer_size", "65536", 0);
    exchange_with("view", "cb_buffer_size", "65536", 1);
    exchange_with("nodes", "cb_nodes", "1", 0);
    exchange_with("list", "weft_method", "list", 0);
}

/* An exchange of these processes by a new file, which all of them check. */
static void exchange_by(MPI_Comm comm, MPI_File file, unsigned salt) {
    int own, all;
    MPI_Comm_rank(comm, &own);
    MPI_Comm_size(comm, &all);
    enum { COUNT = 500, BYTES = 12 };
    unsigned char data[COUNT * BYTES], found[COUNT * BYTES];
    MPI_Datatype pieces;
    MUST(MPI_Type_vector(COUNT, BYTES, BYTES * all, MPI_BYTE, &pieces));
    MUST(MPI_Type_commit(&pieces));
    fill(data, own, sizeof data, salt);
    MUST(MPI_File_set_view(file, own * BYTES, MPI_BYTE, pieces, "native", MPI_INFO_NULL));
    MUST(MPI_File_write_at_all(file, 0, data, sizeof data, MPI_BYTE, MPI_STATUS_IGNORE));
    int other = (own + 1) % all;
    MUST(MPI_File_set_view(file, other * BYTES, MPI_BYTE, pieces, "native", MPI_INFO_NULL));
    MUST(MPI_File_read_at_all(file, 0, found, sizeof found, MPI_BYTE, MPI_STATUS_IGNORE));
    fill(data, other, sizeof data, salt);
    SAME(found, data, sizeof data);
    MUST(MPI_Type_free(&pieces));
}

static MPI_File open_for_exchange(MPI_Comm comm, const char *name) {
    MPI_Info info = info_of(NULL, NULL);
    MPI_File file;
    MUST(MPI_File_open(comm, (char *)name, MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file));
    MUST(MPI_Info_free(&info));
    return file;
}

/* Lines of a file of /proc with this word. */
static int lines_with(const char *path, const char *word) {
    char line[4096];
    int count = 0;
    FILE *file = fopen(path, "r");
    CHECK(file);
    while (fgets(line, sizeof line, file)) count += strstr(line, word) != NULL;
    fclose(file);
    return count;
}

/* Files one after the other and at once, by communicators that come and go. Nothing of one that is gone is left. */
static void files_of_many_communicators(void) {
    const char *maps = "/proc/self/maps";
    int before = -1;
    for (unsigned turn = 0; turn < 30; turn++) {
        MPI_Comm part, same;
        MUST(MPI_Comm_split(MPI_COMM_WORLD, (rank + (int)turn) % 2, -rank, &part));
        MUST(MPI_Comm_dup(part, &same));
        char name[2048];
        snprintf(name, sizeof name, "%s.%u", file_name, (rank + turn) % 2);
        MPI_File first = open_for_exchange(part, name), second = open_for_exchange(part, name);
        exchange_by(part, first, turn);
        exchange_by(part, second, turn + 100);
        MUST(MPI_File_close(&first));
        MPI_File third = open_for_exchange(same, name);
        first = open_for_exchange(part, name);
        exchange_by(same, third, turn + 200);
        exchange_by(part, first, turn + 300);
        MUST(MPI_File_close(&second));
        MUST(MPI_File_close(&third));
        int early = turn % 2; /* the communicator goes while a file is open */
        if (early) MUST(MPI_Comm_free(&part));
        MUST(MPI_File_close(&first));
        if (!early) MUST(MPI_Comm_free(&part));
        MUST(MPI_Comm_free(&same));
        int now = lines_with(maps, "memfd:weft-mpi");
        if (before >= 0) EQUAL(now, before);
        before = now;
    }
    barrier();
    fresh(beside("0"));
    fresh(beside("1"));
}

/* One rank can make no larger file in memory, until this is called with 0. */
static void limit_files_of(int whose, int is_limited) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    limit.rlim_cur = is_limited ? 8192 : limit.rlim_max; /* MPI itself makes small ones */
    signal(SIGXFSZ, SIG_IGN);
    if (rank == whose) CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

/* The connections are made before. */
static MPI_File connected(void) {
    static unsigned char data[1 << 20];
    MPI_File file = open_by(MPI_COMM_SELF, beside("own"), MPI_MODE_CREATE | MPI_MODE_RDWR);
    MUST(MPI_File_write_at(file, 0, data, sizeof data, MPI_BYTE, MPI_STATUS_IGNORE));
    return file;
}

/* The first rank cannot share memory: all of them send messages. */
static void exchange_without_shared_memory(void) {
    MPI_File file = connected();
    MPI_Comm comm;
    MUST(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    limit_files_of(0, 1);
    for (unsigned turn = 0; turn < 3; turn++) {
        MPI_File shared = open_for_exchange(comm, file_name);
        exchange_by(comm, shared, turn);
        MUST(MPI_File_write_ordered(shared, &turn, 1, MPI_INT, MPI_STATUS_IGNORE));
        MUST(MPI_File_close(&shared));
    }
    limit_files_of(0, 0);
    MUST(MPI_Comm_free(&comm));
    MUST(MPI_File_close(&file));
    fresh(beside("own"));
    fresh(file_name);
}

/* A rank has no memory to share for an exchange: all of them fail, and can go on when it has. */
static void exchange_without_memory(void) {
    MPI_File file = connected(), shared = open_for_exchange(MPI_COMM_WORLD, file_name);
    unsigned char data = 1;
    limit_files_of(1, 1);
    FAILS_BY(MPI_File_write_at_all(shared, rank, &data, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_NO_MEM);
    limit_files_of(1, 0);
    exchange_by(MPI_COMM_WORLD, shared, 1);
    MUST(MPI_File_close(&file));
    close_and_delete(&shared, file_name);
    fresh(beside("own"));
}

#define CASE(name) {#name, name}
RUN(MPI_THREAD_SINGLE, CASE(straight_without_a_view), CASE(straight_from_pieces_of_memory),
    CASE(straight_in_views_of_large_blocks), CASE(straight_past_a_rank_that_fails),
    CASE(agreed_where_one_view_is_fine), CASE(hints_that_change),
    CASE(files_of_many_communicators), CASE(exchange_without_shared_memory),
    CASE(exchange_without_memory))
