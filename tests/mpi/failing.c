/* What goes on while something dies. The test that starts it does the killing.
 *
 *   failing FILE write SECONDS   writes collectively and checks, for so long; prints "rounds N errors M". Says
 *                                "writing" when it has begun
 *   failing FILE die             as write, but one rank kills itself in the middle of a collective write
 *   failing FILE usable          opens the file that was left, reads and writes it
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
static int round_trip(MPI_File file, unsigned round) {
    fill(data, rank, BYTES, round);
    int good = MPI_File_write_at_all(file, 0, data, BYTES, MPI_BYTE, MPI_STATUS_IGNORE) == MPI_SUCCESS, all_good;
    MUST(MPI_Allreduce(&good, &all_good, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD));
    if (!all_good) return 0;
    MPI_Status status;
    int count;
    good = MPI_File_read_at_all(file, 0, read_back, BYTES, MPI_BYTE, &status) == MPI_SUCCESS;
    if (good) {
        MUST(MPI_Get_count(&status, MPI_BYTE, &count));
        EQUAL(count, BYTES);
        SAME(read_back, data, BYTES);
    }
    MUST(MPI_Allreduce(&good, &all_good, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD));
    return all_good;
}

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

int main(int argc, char **argv) {
    begin(&argc, &argv, MPI_THREAD_SINGLE);
    const char *what = argc > 2 ? argv[2] : "";
    case_name = what;
    if (strcmp(what, "write") == 0) write_for(argc > 3 ? atof(argv[3]) : 1, 0);
    else if (strcmp(what, "die") == 0) write_for(20, 1);
    else if (strcmp(what, "usable") == 0) is_usable();
    else FAIL("what?");
    return end();
}
