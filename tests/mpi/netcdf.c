/* Variables of a netCDF-4 file, contiguous, chunked and with an unlimited dimension, written by all processes and read by
   their neighbours. */
#include <mpi.h>
#include <netcdf.h>
#include <netcdf_par.h>
#include <stdio.h>

#define ROWS 32
#define COLUMNS 8
#define RECORDS 5

static int rank, ranks;

#define MUST(call) must(call, #call)

static void must(int code, const char *what) {
    if (code == NC_NOERR) return;
    fprintf(stderr, "rank %d of %d: %s: %s\n", rank, ranks, what, nc_strerror(code));
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static int value(int of, int row, int column) { return of * 1000 + row * COLUMNS + column; }

static void check(const char *what, int is, int wanted) {
    if (is == wanted) return;
    fprintf(stderr, "rank %d of %d: %s is %d, not %d\n", rank, ranks, what, is, wanted);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void write_file(const char *path) {
    int file, row, column, record, plain, chunked, series;
    int values[ROWS][COLUMNS];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) values[i][j] = value(rank, i, j);
    MUST(nc_create_par(path, NC_NETCDF4 | NC_CLOBBER, MPI_COMM_WORLD, MPI_INFO_NULL, &file));
    MUST(nc_def_dim(file, "row", ROWS, &row));
    MUST(nc_def_dim(file, "column", COLUMNS * ranks, &column));
    MUST(nc_def_dim(file, "record", NC_UNLIMITED, &record));
    int table[2] = {row, column}, steps[2] = {record, column};
    size_t chunk[2] = {5, 3};
    MUST(nc_def_var(file, "plain", NC_INT, 2, table, &plain));
    MUST(nc_def_var_chunking(file, plain, NC_CONTIGUOUS, NULL));
    MUST(nc_def_var(file, "chunked", NC_INT, 2, table, &chunked));
    MUST(nc_def_var_chunking(file, chunked, NC_CHUNKED, chunk));
    MUST(nc_def_var(file, "series", NC_INT, 2, steps, &series));
    MUST(nc_put_att_text(file, NC_GLOBAL, "title", 4, "weft"));
    MUST(nc_enddef(file));
    size_t start[2] = {0, COLUMNS * rank}, count[2] = {ROWS, COLUMNS};
    MUST(nc_var_par_access(file, plain, NC_INDEPENDENT));
    MUST(nc_put_vara_int(file, plain, start, count, &values[0][0]));
    MUST(nc_var_par_access(file, chunked, NC_COLLECTIVE));
    MUST(nc_put_vara_int(file, chunked, start, count, &values[0][0]));
    MUST(nc_var_par_access(file, series, NC_COLLECTIVE)); /* as each step makes the file longer */
    count[0] = 1;
    for (start[0] = 0; start[0] < RECORDS; start[0]++)
        MUST(nc_put_vara_int(file, series, start, count, values[start[0]]));
    MUST(nc_close(file));
}

static void read_file(const char *path) {
    const char *names[3] = {"plain", "chunked", "series"};
    int file, of = (rank + 1) % ranks;
    MUST(nc_open_par(path, NC_NOWRITE, MPI_COMM_WORLD, MPI_INFO_NULL, &file));
    for (int access = NC_INDEPENDENT; access <= NC_COLLECTIVE; access++)
        for (int n = 0; n < 3; n++) {
            int variable, values[ROWS][COLUMNS], rows = n == 2 ? RECORDS : ROWS;
            size_t start[2] = {0, COLUMNS * of}, count[2] = {rows, COLUMNS};
            MUST(nc_inq_varid(file, names[n], &variable));
            MUST(nc_var_par_access(file, variable, access));
            MUST(nc_get_vara_int(file, variable, start, count, &values[0][0]));
            for (int i = 0; i < rows; i++)
                for (int j = 0; j < COLUMNS; j++) check(names[n], values[i][j], value(of, i, j));
        }
    MUST(nc_close(file));
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    write_file(argv[1]);
    read_file(argv[1]);
    if (rank == 0) printf("ok\n");
    MPI_Finalize();
    return 0;
}
