/* A variable of a netCDF file, written in columns by all processes and read by their neighbours, with PnetCDF. */
#include <mpi.h>
#include <pnetcdf.h>
#include <stdio.h>

#define ROWS 32
#define COLUMNS 8

static int rank, ranks;

#define MUST(call) must(call, #call)

static void must(int code, const char *what) {
    if (code == NC_NOERR) return;
    fprintf(stderr, "rank %d of %d: %s: %s\n", rank, ranks, what, ncmpi_strerror(code));
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static int value(int of, int row, int column) { return of * 1000 + row * COLUMNS + column; }

int main(int argc, char **argv) {
    int file, dimensions[2], variable, written[ROWS][COLUMNS], read[ROWS][COLUMNS];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Offset start[2] = {0, COLUMNS * rank}, count[2] = {ROWS, COLUMNS};
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) written[i][j] = value(rank, i, j);
    MUST(ncmpi_create(MPI_COMM_WORLD, argv[1], NC_CLOBBER | NC_64BIT_DATA, MPI_INFO_NULL, &file));
    MUST(ncmpi_def_dim(file, "row", ROWS, &dimensions[0]));
    MUST(ncmpi_def_dim(file, "column", COLUMNS * ranks, &dimensions[1]));
    MUST(ncmpi_def_var(file, "value", NC_INT, 2, dimensions, &variable));
    MUST(ncmpi_enddef(file));
    MUST(ncmpi_put_vara_int_all(file, variable, start, count, &written[0][0]));
    MUST(ncmpi_close(file));

    int neighbour = (rank + 1) % ranks;
    start[1] = COLUMNS * neighbour;
    MUST(ncmpi_open(MPI_COMM_WORLD, argv[1], NC_NOWRITE, MPI_INFO_NULL, &file));
    MUST(ncmpi_inq_varid(file, "value", &variable));
    MUST(ncmpi_get_vara_int_all(file, variable, start, count, &read[0][0]));
    MUST(ncmpi_close(file));
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++)
            if (read[i][j] != value(neighbour, i, j)) {
                fprintf(stderr, "rank %d: row %d, column %d is %d\n", rank, i, j, read[i][j]);
                MPI_Abort(MPI_COMM_WORLD, 1);
            }
    if (rank == 0) printf("ok\n");
    MPI_Finalize();
    return 0;
}
