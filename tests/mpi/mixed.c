/* A program that does more than one thing: files of two file systems, threads, children.
 *
 *   mpirun -n 4 mixed FILE        $WEFT_MPI_TEST_LOCAL is a directory of this machine */
#include <pthread.h>
#include <sys/wait.h>

#include "methods.h"

/* In the directory of this machine. */
static const char *local(const char *name) {
    static char path[2048];
    const char *dir = getenv("WEFT_MPI_TEST_LOCAL");
    snprintf(path, sizeof path, "%s/%s", dir ? dir : "/tmp", name);
    return path;
}

/* Whether nonblocking accesses to one of the two files are left out: those of the MPI's own to a local file. */
static int waits_for(int file) {
    int is_local = file == 1 || getenv("WEFT_MPI_TEST_LENIENT");
    return is_local && is_left_out("local_nonblocking");
}

static enum method blocking(enum method method) {
    return method == IAT ? AT : method == IAT_ALL ? AT_ALL : method == IPLAIN ? PLAIN : method;
}

/* Both at once, by all kinds of access, nonblocking ones under way together. */
static void two_file_systems(void) {
    enum { BYTES = 5000 };
    static unsigned char data[2][BYTES], read[2][BYTES];
    MPI_File files[2];
    char names[2][2048];
    snprintf(names[0], sizeof names[0], "%s", file_name);
    snprintf(names[1], sizeof names[1], "%s", local("mixed"));
    for (int i = 0; i < 2; i++) files[i] = open_fresh(names[i]);
    static const enum method methods[] = {AT, AT_ALL, IAT, IAT_ALL, ALL, AT_ALL_SPLIT, IPLAIN, PLAIN};
    for (unsigned round = 0; round < 8; round++) {
        MPI_Offset at = ((MPI_Offset)round * size + rank) * BYTES;
        for (int i = 0; i < 2; i++) {
            fill(data[i], at, BYTES, round + 50u * (unsigned)i);
            enum method method = waits_for(i) ? blocking(methods[round]) : methods[round];
            MUST(data_access(files[i], method, 1, at, data[i], BYTES, MPI_BYTE, MPI_STATUS_IGNORE));
        }
        /* Open MPI lets a process go on while another one still writes for it. */
        if (waits_for(1)) barrier();
        MPI_Request requests[2];
        int begun = 0;
        for (int i = 0; i < 2; i++)
            if (waits_for(i)) MUST(MPI_File_read_at(files[i], at, read[i], BYTES, MPI_BYTE, MPI_STATUS_IGNORE));
            else MUST(MPI_File_iread_at(files[i], at, read[i], BYTES, MPI_BYTE, &requests[begun++]));
        MUST(MPI_Waitall(begun, requests, MPI_STATUSES_IGNORE));
        SAME(read, data, sizeof data);
    }
    for (int i = 0; i < 2; i++) {
        MUST(MPI_File_sync(files[i]));
        barrier();
        MPI_Offset bytes;
        MUST(MPI_File_get_size(files[i], &bytes));
        EQUAL(bytes, 8 * BYTES * size);
        MUST(MPI_File_write_ordered(files[i], "a", 1, MPI_CHAR, MPI_STATUS_IGNORE));
        MUST(MPI_File_close(&files[i]));
    }
    barrier();
    /* The local file is one of this machine. */
    EQUAL(access(names[1], R_OK), 0);
    barrier();
    if (rank == 0)
        for (int i = 0; i < 2; i++) MUST(MPI_File_delete(names[i], MPI_INFO_NULL));
    barrier();
    CHECK(access(names[1], R_OK) != 0);
}

/* The program forks, runs another program, and goes on. */
static void forks(void) {
    MPI_File file = open_fresh(file_name);
    for (int round = 0; round < 3; round++) {
        int value = rank + 10 * round, read = -1;
        MUST(MPI_File_write_at(file, (round * size + rank) * 4, &value, 1, MPI_INT, MPI_STATUS_IGNORE));
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            if (round == 1) execl("/bin/true", "true", (char *)NULL);
            _exit(round == 2 ? 5 : 0);
        }
        MUST(MPI_File_read_at_all(file, (round * size + rank) * 4, &read, 1, MPI_INT, MPI_STATUS_IGNORE));
        EQUAL(read, value);
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == (round == 2 ? 5 : 0));
        MUST(MPI_File_write_ordered(file, &value, 1, MPI_INT, MPI_STATUS_IGNORE));
    }
    close_and_delete(&file, file_name);
}

enum { THREADS = 4, TURNS = 30, PIECE = 1234 };

struct worker {
    MPI_File file;
    int number;
    char name[2048];
};

/* Its own part of a file that others use, too. */
static void *work_on_one_file(void *argument) {
    struct worker *worker = argument;
    unsigned char data[PIECE], read[PIECE];
    for (int turn = 0; turn < TURNS; turn++) {
        MPI_Offset at = (((MPI_Offset)rank * THREADS + worker->number) * TURNS + turn) * PIECE;
        MPI_Status status;
        fill(data, at, PIECE, 3);
        MUST(data_access(worker->file, turn % 2 ? AT : IAT, 1, at, data, PIECE, MPI_BYTE, &status));
        COUNTS(&status, MPI_BYTE, PIECE);
        MUST(data_access(worker->file, turn % 3 ? AT : IAT, 0, at, read, PIECE, MPI_BYTE, &status));
        SAME(read, data, PIECE);
        if (turn % 10 == 0) MUST(MPI_File_write_shared(worker->file, NULL, 0, MPI_BYTE, MPI_STATUS_IGNORE));
    }
    return NULL;
}

/* Opens, writes, reads and deletes a file that is its own. */
static void *work_on_own_files(void *argument) {
    struct worker *worker = argument;
    unsigned char data[PIECE], read[PIECE];
    for (int turn = 0; turn < 5; turn++) {
        MPI_File file = open_by(MPI_COMM_SELF, worker->name, MPI_MODE_CREATE | MPI_MODE_RDWR);
        fill(data, turn, PIECE, (unsigned)worker->number);
        MUST(MPI_File_write_at_all(file, turn, data, PIECE, MPI_BYTE, MPI_STATUS_IGNORE));
        MUST(MPI_File_read_at(file, turn, read, PIECE, MPI_BYTE, MPI_STATUS_IGNORE));
        SAME(read, data, PIECE);
        MUST(MPI_File_close(&file));
        MUST(MPI_File_delete(worker->name, MPI_INFO_NULL));
    }
    return NULL;
}

static void run_threads(void *(*work)(void *), struct worker *workers) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) EQUAL(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    for (int i = 0; i < THREADS; i++) EQUAL(pthread_join(threads[i], NULL), 0);
}

static void threads_on_one_file(void) {
    static struct worker workers[THREADS];
    MPI_File file = open_fresh(file_name);
    for (int i = 0; i < THREADS; i++) workers[i] = (struct worker){.file = file, .number = i};
    run_threads(work_on_one_file, workers);
    MUST(MPI_File_sync(file));
    barrier();
    int bytes = size * THREADS * TURNS * PIECE;
    unsigned char *all = allocate((size_t)bytes);
    EQUAL(raw_read(file_name, 0, all, bytes), bytes);
    for (int i = 0; i < bytes; i++)
        if (all[i] != pattern(i, 3)) FAIL("byte %d is %d, not %d", i, all[i], pattern(i, 3));
    free(all);
    close_and_delete(&file, file_name);
}

static void threads_on_their_own_files(void) {
    static struct worker workers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.number = i};
        snprintf(workers[i].name, sizeof workers[i].name, "%s.%d.%d", file_name, rank, i);
    }
    run_threads(work_on_own_files, workers);
}

/* Each thread of each rank has a communicator, and calls collectives on a file of that. */
static MPI_Comm teams[THREADS];

static void *open_collectively(void *argument) {
    struct worker *worker = argument;
    worker->file = open_by(teams[worker->number], worker->name, MPI_MODE_CREATE | MPI_MODE_RDWR);
    return NULL;
}

static void *work_collectively(void *argument) {
    struct worker *worker = argument;
    unsigned char data[PIECE], read[PIECE];
    MPI_File file = worker->file;
    for (int turn = 0; turn < 10; turn++) {
        MPI_Offset at = ((MPI_Offset)turn * size + rank) * PIECE;
        fill(data, at, PIECE, (unsigned)worker->number);
        MUST(MPI_File_write_at_all(file, at, data, PIECE, MPI_BYTE, MPI_STATUS_IGNORE));
        MUST(MPI_File_read_at_all(file, at, read, PIECE, MPI_BYTE, MPI_STATUS_IGNORE));
        SAME(read, data, PIECE);
        MUST(MPI_File_write_ordered(file, data, 1, MPI_BYTE, MPI_STATUS_IGNORE));
        MUST(MPI_File_seek_shared(file, (MPI_Offset)1 << 20, MPI_SEEK_SET));
    }
    return NULL;
}

/* One thread opens and closes the files, or each thread its own. */
static void with_teams(int each_opens) {
    static struct worker workers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        MUST(MPI_Comm_dup(MPI_COMM_WORLD, &teams[i]));
        workers[i] = (struct worker){.number = i};
        snprintf(workers[i].name, sizeof workers[i].name, "%s.%d", file_name, i);
        fresh(workers[i].name);
    }
    if (each_opens) run_threads(open_collectively, workers);
    else
        for (int i = 0; i < THREADS; i++) open_collectively(&workers[i]);
    run_threads(work_collectively, workers);
    for (int i = 0; i < THREADS; i++) {
        MUST(MPI_File_close(&workers[i].file));
        MUST(MPI_Comm_free(&teams[i]));
        fresh(workers[i].name);
    }
}

static void threads_with_collectives(void) { with_teams(0); }
static void threads_that_open_collectively(void) { with_teams(1); }

/* Attributes whose functions notice each other: MPI libraries count their own references in such functions, without a
 * lock. */
static int copies, inside, met;

static void notice(void) {
    if (__atomic_fetch_add(&inside, 1, __ATOMIC_SEQ_CST) > 0) met = 1;
    usleep(300);
    __atomic_fetch_sub(&inside, 1, __ATOMIC_SEQ_CST);
}

static int copy_of_comm(MPI_Comm comm, int keyval, void *extra, void *value, void *copy, int *is_copied) {
    (void)comm, (void)keyval, (void)extra, (void)value, (void)copy;
    __atomic_fetch_add(&copies, 1, __ATOMIC_SEQ_CST);
    notice();
    *is_copied = 1;
    return MPI_SUCCESS;
}

static int delete_of_comm(MPI_Comm comm, int keyval, void *value, void *extra) {
    (void)comm, (void)keyval, (void)value, (void)extra;
    notice();
    return MPI_SUCCESS;
}

static int copy_of_type(MPI_Datatype type, int keyval, void *extra, void *value, void *copy, int *is_copied) {
    (void)type;
    return copy_of_comm(MPI_COMM_NULL, keyval, extra, value, copy, is_copied);
}

/* What every process has for itself is used without copies of it, which would have the program's attributes. */
static void attributes_of_predefined_handles(void) {
    int of_comm, of_type;
    MUST(MPI_Comm_create_keyval(copy_of_comm, MPI_COMM_NULL_DELETE_FN, &of_comm, NULL));
    MUST(MPI_Type_create_keyval(copy_of_type, MPI_TYPE_NULL_DELETE_FN, &of_type, NULL));
    MUST(MPI_Comm_set_attr(MPI_COMM_SELF, of_comm, NULL));
    MUST(MPI_Type_set_attr(MPI_BYTE, of_type, NULL));
    MUST(MPI_Type_set_attr(MPI_INT, of_type, NULL));
    copies = 0;
    char name[2048], datarep[MPI_MAX_DATAREP_STRING];
    snprintf(name, sizeof name, "%s.%d", file_name, rank);
    MPI_File file = open_by(MPI_COMM_SELF, name, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE);
    MUST(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    MUST(MPI_File_write_at_all(file, 0, &rank, 1, MPI_INT, MPI_STATUS_IGNORE));
    MPI_Offset displacement;
    MPI_Datatype etype, filetype;
    MUST(MPI_File_get_view(file, &displacement, &etype, &filetype, datarep));
    CHECK(etype == MPI_INT && filetype == MPI_INT);
    MUST(MPI_File_close(&file));
    if (copies > 0) DIFFERS("attributes were copied %d times", copies);
    MUST(MPI_Comm_delete_attr(MPI_COMM_SELF, of_comm));
    MUST(MPI_Type_delete_attr(MPI_BYTE, of_type));
    MUST(MPI_Type_delete_attr(MPI_INT, of_type));
    MUST(MPI_Comm_free_keyval(&of_comm));
    MUST(MPI_Type_free_keyval(&of_type));
}

static void *open_and_close_collectively(void *argument) {
    struct worker *worker = argument;
    for (int turn = 0; turn < 5; turn++) {
        open_collectively(worker);
        MUST(MPI_File_close(&worker->file));
    }
    return NULL;
}

/* Threads that open and close files at once do not copy and delete attributes at once. */
static void attributes_and_threads(void) {
    static struct worker workers[THREADS];
    int keyval;
    MUST(MPI_Comm_create_keyval(copy_of_comm, delete_of_comm, &keyval, NULL));
    for (int i = 0; i < THREADS; i++) {
        MUST(MPI_Comm_dup(MPI_COMM_WORLD, &teams[i]));
        MUST(MPI_Comm_set_attr(teams[i], keyval, NULL));
        workers[i] = (struct worker){.number = i};
        snprintf(workers[i].name, sizeof workers[i].name, "%s.%d", file_name, i);
    }
    met = 0;
    run_threads(open_and_close_collectively, workers);
    if (met) DIFFERS("attributes of %d communicators were copied or deleted at once", THREADS);
    for (int i = 0; i < THREADS; i++) {
        MUST(MPI_Comm_free(&teams[i]));
        fresh(workers[i].name);
    }
    MUST(MPI_Comm_free_keyval(&keyval));
}

#define CASE(name) {#name, name}
RUN(MPI_THREAD_MULTIPLE, CASE(two_file_systems), CASE(forks), CASE(threads_on_one_file),
    CASE(threads_on_their_own_files), CASE(threads_with_collectives),
    CASE(threads_that_open_collectively), CASE(attributes_of_predefined_handles),
    CASE(attributes_and_threads))
