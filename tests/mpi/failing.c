/* What goes on while something dies. The test that starts it does the killing.
 *
 *   failing FILE write SECONDS   writes collectively and checks, for so long; prints "rounds N errors M". Says
 *                                "writing" when it has begun
 *   failing FILE die             as write, but one rank kills itself in the middle of a collective write
 *   failing FILE usable          opens the file that was left, reads and writes it
 *   failing FILE full            fills a disk; collective writes by each method then fail on all ranks, until the
 *                                file that filled it is gone
 *
 * A collective call that meets a dead server may fail, with an error; what succeeded is there. */
#include "methods.h"

enum { PIECE = 64, PIECES = 2000, BYTES = PIECE * PIECES };

static unsigned char data[BYTES], read_back[BYTES];

static void set_view(MPI_File file) {
    MPI_Datatype pieces;
    MUST(MPI_Type_vector(PIECES, PIECE, PIECE * size, MPI_BYTE, &pieces));
    MUST(MPI_Type_commit(&pieces));
    MUST(MPI_File_set_view(file, rank * PIECE, MPI_BYTE, pieces, "native", MPI_INFO_NULL));
    MUST(MPI_Type_free(&pieces));
}

/* Both calls may fail if a server is away; wrong bytes may never come. Whether all went well on all ranks. */
static int round_trip_of(MPI_File file, unsigned round, int bytes) {
    fill(data, rank, bytes, round);
    int good = MPI_File_write_at_all(file, 0, data, bytes, MPI_BYTE, MPI_STATUS_IGNORE) == MPI_SUCCESS, all_good;
    MUST(MPI_Allreduce(&good, &all_good, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD));
    if (!all_good) return 0;
    MPI_Status status;
    int count;
    good = MPI_File_read_at_all(file, 0, read_back, bytes, MPI_BYTE, &status) == MPI_SUCCESS;
    if (good) {
        MUST(MPI_Get_count(&status, MPI_BYTE, &count));
        EQUAL(count, bytes);
        SAME(read_back, data, bytes);
    }
    MUST(MPI_Allreduce(&good, &all_good, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD));
    return all_good;
}

static int round_trip(MPI_File file, unsigned round) { return round_trip_of(file, round, BYTES); }

static void die(int signal) {
    (void)signal;
    kill(getpid(), SIGKILL);
}

static void write_for(double seconds, int dies) {
    MPI_File file = open_by(MPI_COMM_WORLD, file_name, MPI_MODE_CREATE | MPI_MODE_RDWR);
    set_view(file);
    double start = MPI_Wtime();
    unsigned rounds = 0, errors = 0, goes_on = 1, was_good = 0;
    while (goes_on || !was_good) {
        if (rank == 0 && rounds == 1) {
            puts("writing");
            fflush(stdout);
        }
        if (dies && rounds == 5 && rank == size / 2) {
            /* It dies a moment from now, wherever it is in the collective then. */
            signal(SIGALRM, die);
            ualarm(300, 0);
        }
        was_good = (unsigned)round_trip(file, rounds++);
        errors += !was_good;
        CHECK(MPI_Wtime() - start < seconds + 40);
        goes_on = MPI_Wtime() - start < seconds;
        MUST(MPI_Bcast(&goes_on, 1, MPI_UNSIGNED, 0, MPI_COMM_WORLD));
    }
    MUST(MPI_File_close(&file));
    if (rank == 0) printf("rounds %u errors %u\n", rounds, errors);
}

static void is_usable(void) {
    MPI_File file = open_by(MPI_COMM_WORLD, file_name, MPI_MODE_RDWR);
    MPI_Offset bytes;
    MUST(MPI_File_get_size(file, &bytes));
    CHECK(bytes > 0);
    set_view(file);
    MUST(MPI_File_read_at_all(file, 0, read_back, BYTES, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(round_trip(file, 99));
    MUST(MPI_File_set_atomicity(file, 1));
    MUST(MPI_File_write_at(file, 0, data, 100, MPI_BYTE, MPI_STATUS_IGNORE));
    MUST(MPI_File_set_atomicity(file, 0));
    MUST(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    MUST(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    MUST(MPI_File_write_ordered(file, data, 5, MPI_BYTE, MPI_STATUS_IGNORE));
    close_and_delete(&file, file_name);
}

static MPI_File open_striped(const char *name, const char *method) {
    MPI_Info info;
    MUST(MPI_Info_create(&info));
    MUST(MPI_Info_set(info, "striping_unit", "65536"));
    MUST(MPI_Info_set(info, "weft_method", method));
    MPI_File file;
    MUST(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file));
    MUST(MPI_Info_free(&info));
    return file;
}

/* Rank 0 takes all there is, to the last block. */
static MPI_File take_all_space(const char *name) {
    enum { LARGE = 1 << 20, SMALL = 4096 };
    static unsigned char block[LARGE];
    MPI_File file = open_striped(name, "auto");
    MPI_Offset at = 0;
    int class = MPI_SUCCESS;
    for (int bytes = LARGE; rank == 0 && bytes >= SMALL; bytes = bytes == LARGE ? SMALL : 0)
        for (class = MPI_SUCCESS; class == MPI_SUCCESS; at += bytes) {
            CHECK(at < 1 << 30);
            class = class_of(MPI_File_write_at(file, at, block, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
        }
    if (rank == 0) EQUAL(class, MPI_ERR_NO_SPACE);
    MUST(MPI_Barrier(MPI_COMM_WORLD));
    return file;
}

static void meet_a_full_disk(void) {
    const char *methods[] = {"auto", "multiple", "sieve", "two_phase", "list"};
    char hog_name[2048];
    snprintf(hog_name, sizeof hog_name, "%s.hog", file_name);
    MPI_File files[5], hog = take_all_space(hog_name);
    for (int method = 0; method < 5; method++) {
        case_name = methods[method];
        files[method] = open_striped(beside(methods[method]), methods[method]);
        set_view(files[method]);
        int failed = 0, failed_everywhere = 0;
        for (int round = 0; !failed_everywhere; round++) {
            CHECK(round < 20);
            int code = MPI_File_write_at_all(files[method], (MPI_Offset)round * BYTES, data, BYTES, MPI_BYTE,
                                             MPI_STATUS_IGNORE);
            if ((failed = code != MPI_SUCCESS)) {
                EQUAL(class_of(code), MPI_ERR_NO_SPACE);
                CHECK(strlen(text_of(code)) > 4);
            }
            MUST(MPI_Allreduce(&failed, &failed_everywhere, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD));
        }
    }
    close_and_delete(&hog, hog_name);
    for (int method = 0; method < 5; method++) {
        case_name = methods[method];
        int tries = 0;
        while (!round_trip_of(files[method], 7, 50 * PIECE)) { /* space is given back a moment later */
            CHECK(tries++ < 200);
            usleep(50000);
        }
        close_and_delete(&files[method], beside(methods[method]));
    }
}

int main(int argc, char **argv) {
    begin(&argc, &argv, MPI_THREAD_SINGLE);
    const char *what = argc > 2 ? argv[2] : "";
    case_name = what;
    if (strcmp(what, "write") == 0) write_for(argc > 3 ? atof(argv[3]) : 1, 0);
    else if (strcmp(what, "die") == 0) write_for(20, 1);
    else if (strcmp(what, "usable") == 0) is_usable();
    else if (strcmp(what, "full") == 0) meet_a_full_disk();
    else FAIL("what?");
    return end();
}
