/* What the MPI-IO programs of this directory share: named cases, checks that say where they failed, a watch on hangs.
 *
 *   mpirun -n 4 PROGRAM FILE [CASE ...]      runs all cases, or those named; rank 0 prints "ok" at the end
 *
 * FILE is any name that MPI_File_open takes. Cases use it, and FILE followed by a dot and more.
 * WEFT_MPI_TEST_SKIP     cases to leave out, and words for what an MPI is known to do wrong, separated by spaces
 * WEFT_MPI_TEST_LENIENT  errors that are missing or of another class are only told, by lines with "differs"
 * WEFT_MPI_TEST_SECONDS  after so long a rank says where it is and ends (60) */
#ifndef WEFT_MPI_CHECK_H
#define WEFT_MPI_CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <execinfo.h>
#include <mpi.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* MPI 4 has calls with counts of 64 bits. */
#define HAS_LARGE_COUNTS (MPI_VERSION >= 4)

#define UNUSED __attribute__((unused))

static int rank, size;
static const char *file_name;
static const char *case_name = "no case";
static volatile int last_line;

struct test {
    const char *name;
    void (*run)(void);
};

/* Says what is wrong, and ends the job. */
static UNUSED void fail(const char *source, int line, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "rank %d of %d: %s:%d: %s: %s\n", rank, size, source, line, case_name, text);
    fflush(stderr);
    usleep(100000); /* launchers lose what was printed just before an abort */
    MPI_Abort(MPI_COMM_WORLD, 1);
    _exit(1);
}

#define FAIL(...) fail(__FILE__, __LINE__, __VA_ARGS__)

/* An error that is not as it has to be. */
#define DIFFERS(format, ...) \
    do { \
        if (!getenv("WEFT_MPI_TEST_LENIENT")) FAIL(format, __VA_ARGS__); \
        if (rank == 0) fprintf(stderr, "differs: %s:%d: " format "\n", __FILE__, __LINE__, __VA_ARGS__); \
    } while (0)

#define CHECK(what) \
    do { \
        last_line = __LINE__; \
        if (!(what)) FAIL("%s", #what); \
    } while (0)

#define EQUAL(what, expected) \
    do { \
        last_line = __LINE__; \
        long long is_ = (long long)(what), should_ = (long long)(expected); \
        if (is_ != should_) FAIL("%s is %lld, not %lld (%s)", #what, is_, should_, #expected); \
    } while (0)

static UNUSED int class_of(int code) {
    int class = MPI_SUCCESS;
    if (code != MPI_SUCCESS) MPI_Error_class(code, &class);
    return class;
}

static UNUSED const char *text_of(int code) {
    static char text[MPI_MAX_ERROR_STRING + 1];
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) strcpy(text, "(no text)");
    for (char *at = text; *at; at++)
        if (*at == '\n') *at = ' ';
    return text;
}

/* The call succeeds. */
#define MUST(call) \
    do { \
        last_line = __LINE__; \
        int code_ = (call); \
        if (code_ != MPI_SUCCESS) FAIL("%s: class %d: %s", #call, class_of(code_), text_of(code_)); \
    } while (0)

/* The call fails with one of these classes, and the error has a text. */
#define FAILS_BY(call, ...) \
    do { \
        last_line = __LINE__; \
        int classes_[] = {__VA_ARGS__}, code_ = (call), good_ = 0; \
        for (size_t i_ = 0; i_ < sizeof classes_ / sizeof *classes_; i_++) good_ |= class_of(code_) == classes_[i_]; \
        if (!good_ || code_ == MPI_SUCCESS) \
            DIFFERS("%s: class %d (%s), not %s", #call, class_of(code_), text_of(code_), #__VA_ARGS__); \
        else CHECK(strlen(text_of(code_)) > 4); \
    } while (0)

/* The call fails, whatever it says. */
#define FAILS(call) \
    do { \
        last_line = __LINE__; \
        int code_ = (call); \
        if (code_ == MPI_SUCCESS) DIFFERS("%s: no error", #call); \
    } while (0)

/* Beside FILE: FILE.suffix. Four at a time. */
static UNUSED const char *beside(const char *suffix) {
    static char names[4][2048];
    static int next;
    char *name = names[next++ % 4];
    snprintf(name, sizeof names[0], "%s.%s", file_name, suffix);
    return name;
}

/* The byte that belongs at a place, for each salt another. */
static UNUSED unsigned char pattern(long long at, unsigned salt) {
    uint64_t mixed = ((uint64_t)at + 1) * 0x9e3779b97f4a7c15u + (uint64_t)salt * 0xbf58476d1ce4e5b9u;
    mixed ^= mixed >> 29;
    return (unsigned char)(mixed * 0x94d049bb133111ebu >> 56);
}

static UNUSED void fill(void *buffer, long long at, size_t bytes, unsigned salt) {
    for (size_t i = 0; i < bytes; i++) ((unsigned char *)buffer)[i] = pattern(at + (long long)i, salt);
}

static UNUSED void *allocate(size_t bytes) {
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory) FAIL("no memory for %zu bytes", bytes);
    return memory;
}

/* The bytes of both are the same; says the first that differs. */
#define SAME(is, should, bytes) \
    do { \
        last_line = __LINE__; \
        const unsigned char *left_ = (const void *)(is), *right_ = (const void *)(should); \
        for (size_t i_ = 0; i_ < (size_t)(bytes); i_++) \
            if (left_[i_] != right_[i_]) \
                FAIL("%s: byte %zu of %zu is %02x, not %02x", #is, i_, (size_t)(bytes), left_[i_], right_[i_]); \
    } while (0)

static UNUSED void barrier(void) { MUST(MPI_Barrier(MPI_COMM_WORLD)); }

/* Removes a file if it is there; collective. */
static UNUSED void fresh(const char *name) {
    if (rank == 0) MPI_File_delete(name, MPI_INFO_NULL);
    barrier();
}

static UNUSED MPI_File open_by(MPI_Comm comm, const char *name, int mode) {
    MPI_File file;
    MUST(MPI_File_open(comm, name, mode, MPI_INFO_NULL, &file));
    return file;
}

/* A new file, open on all ranks for reading and writing. */
static UNUSED MPI_File open_fresh(const char *name) {
    fresh(name);
    return open_by(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR);
}

/* Closes on all ranks and removes the file. */
static UNUSED void close_and_delete(MPI_File *file, const char *name) {
    MUST(MPI_File_close(file));
    CHECK(*file == MPI_FILE_NULL);
    barrier();
    if (rank == 0) MUST(MPI_File_delete(name, MPI_INFO_NULL));
    barrier();
}

/* Reads bytes by an open of its own, as they are in the file; how many there were. Not collective. */
static UNUSED int raw_read(const char *name, MPI_Offset at, void *buffer, int bytes) {
    MPI_File file = open_by(MPI_COMM_SELF, name, MPI_MODE_RDONLY);
    MPI_Status status;
    int count;
    MUST(MPI_File_read_at(file, at, buffer, bytes, MPI_BYTE, &status));
    MUST(MPI_Get_count(&status, MPI_BYTE, &count));
    MUST(MPI_File_close(&file));
    return count;
}

static UNUSED void raw_write(const char *name, MPI_Offset at, const void *buffer, int bytes) {
    MPI_File file = open_by(MPI_COMM_SELF, name, MPI_MODE_CREATE | MPI_MODE_WRONLY);
    MUST(MPI_File_write_at(file, at, buffer, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
    MUST(MPI_File_close(&file));
}

static UNUSED MPI_Offset raw_size(const char *name) {
    MPI_File file = open_by(MPI_COMM_SELF, name, MPI_MODE_RDONLY);
    MPI_Offset bytes;
    MUST(MPI_File_get_size(file, &bytes));
    MUST(MPI_File_close(&file));
    return bytes;
}

/* A status counts so many of a type. */
#define COUNTS(status, type, expected) \
    do { \
        int counted_ = -77; \
        MUST(MPI_Get_count((status), (type), &counted_)); \
        EQUAL(counted_, (expected)); \
    } while (0)

static void hangs(int signal) {
    (void)signal;
    char text[512];
    int length = snprintf(text, sizeof text, "rank %d of %d: hangs in case %s, after line %d\n", rank, size,
                          case_name, (int)last_line);
    ssize_t said = write(2, text, (size_t)length);
    (void)said;
    void *frames[40];
    backtrace_symbols_fd(frames, backtrace(frames, 40), 2);
    sleep(2); /* the others say it too */
    _exit(3);
}

static int is_word_of(const char *word, const char *words) {
    size_t length = strlen(word);
    for (const char *at = words; at && (at = strstr(at, word)); at += length)
        if ((at == words || at[-1] == ' ') && (at[length] == 0 || at[length] == ' ')) return 1;
    return 0;
}

/* Whether the MPI is known to do something wrong that this word stands for. */
static UNUSED int is_left_out(const char *word) { return is_word_of(word, getenv("WEFT_MPI_TEST_SKIP")); }

static int is_chosen(const char *name, int count, char **names) {
    if (is_left_out(name)) return 0;
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0) return 1;
    return count == 0;
}

static UNUSED void begin(int *argc, char ***argv, int threads_needed) {
    int threads;
    MUST(MPI_Init_thread(argc, argv, threads_needed, &threads));
    if (*argc < 2) {
        fprintf(stderr, "which file?\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    file_name = (*argv)[1];
    const char *seconds = getenv("WEFT_MPI_TEST_SECONDS");
    void *frames[1];
    backtrace(frames, 1); /* so that the first call in a signal handler does not allocate */
    signal(SIGALRM, hangs);
    alarm(seconds ? (unsigned)atoi(seconds) : 60);
    CHECK(threads >= threads_needed);
}

static UNUSED int end(void) {
    case_name = "the end";
    barrier();
    MUST(MPI_Finalize());
    if (rank == 0) puts("ok");
    return 0;
}

static UNUSED int run_tests(int argc, char **argv, const struct test *tests, int count, int threads_needed) {
    begin(&argc, &argv, threads_needed);
    for (int i = 0; i < count; i++) {
        if (!is_chosen(tests[i].name, argc - 2, argv + 2)) continue;
        case_name = tests[i].name;
        double start = MPI_Wtime();
        tests[i].run();
        barrier();
        if (rank == 0 && getenv("WEFT_MPI_TEST_TIMES"))
            fprintf(stderr, "%-24s %7.1f ms\n", tests[i].name, (MPI_Wtime() - start) * 1000);
    }
    return end();
}

#define RUN(threads, ...) \
    int main(int argc, char **argv) { \
        static const struct test tests[] = {__VA_ARGS__}; \
        return run_tests(argc, argv, tests, sizeof tests / sizeof *tests, threads); \
    }

#endif
