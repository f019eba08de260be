/*
 * Writes an array of 8 by 12 doubles in four tiles, as four processes would, each with ghost cells around its tile
 * in memory. Then reads one column of it, and the whole array through a view.
 *
 *     cc tiles.c $(pkg-config --cflags --libs weft) -o tiles
 *     ./tiles weft://127.0.0.1:7000/
 *     weft dump --subarray 8,12:0,5:8,1:f64 weft://127.0.0.1:7000/tiles.f64 --format f64
 */
#include <stdio.h>
#include <weft.h>

enum { ROWS = 8, COLUMNS = 12, TILE_ROWS = 4, TILE_COLUMNS = 6, GHOST = 1 };

static int failed(const char *what) {
    fprintf(stderr, "tiles: %s: %s\n", what, weft_last_error());
    return 1;
}

static int write_tile(weft_file *file, const weft_type *number, uint64_t row, uint64_t column) {
    double tile[TILE_ROWS + 2 * GHOST][TILE_COLUMNS + 2 * GHOST] = {{0}};
    for (uint64_t i = 0; i < TILE_ROWS; i++)
        for (uint64_t j = 0; j < TILE_COLUMNS; j++)
            tile[GHOST + i][GHOST + j] = (double)((row + i) * COLUMNS + column + j);

    const uint64_t counts[2] = {TILE_ROWS, TILE_COLUMNS};
    const uint64_t memory_dims[2] = {TILE_ROWS + 2 * GHOST, TILE_COLUMNS + 2 * GHOST}, memory_starts[2] = {GHOST, GHOST};
    const uint64_t file_dims[2] = {ROWS, COLUMNS}, file_starts[2] = {row, column};
    weft_type *inside = weft_type_subarray(2, memory_dims, memory_starts, counts, WEFT_ORDER_C, number);
    weft_type *place = weft_type_subarray(2, file_dims, file_starts, counts, WEFT_ORDER_C, number);
    ssize_t bytes = weft_write_typed(file, tile, 1, inside, 0, 1, place);
    weft_type_free(inside);
    weft_type_free(place);
    return bytes == (ssize_t)(TILE_ROWS * TILE_COLUMNS * sizeof(double)) ? 0 : -1;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s weft://HOST:PORT/\n", argv[0]);
        return 2;
    }
    weft_fs *fs = weft_connect(argv[1], NULL);
    if (fs == NULL)
        return failed("connect");
    weft_file *file = weft_creat(fs, "/tiles.f64", 0644, NULL);
    if (file == NULL)
        return failed("create");

    weft_type *number = weft_type_bytes(sizeof(double));
    for (uint64_t row = 0; row < ROWS; row += TILE_ROWS)
        for (uint64_t column = 0; column < COLUMNS; column += TILE_COLUMNS)
            if (write_tile(file, number, row, column) < 0)
                return failed("write a tile");

    double column[ROWS];
    weft_type *strided = weft_type_vector(ROWS, 1, COLUMNS, number);
    if (weft_read_typed(file, column, ROWS, number, 5 * sizeof(double), 1, strided) < 0)
        return failed("read a column");
    printf("column 5 of tiles.f64:");
    for (int row = 0; row < ROWS; row++)
        printf(" %g", column[row]);
    printf("\n");

    double all[ROWS * COLUMNS];
    if (weft_set_view(file, 0, number) < 0 || weft_read(file, all, sizeof all) < 0)
        return failed("read all");
    printf("first 3 of %d numbers: %g %g %g\n", ROWS * COLUMNS, all[0], all[1], all[2]);
    weft_type_free(strided);
    weft_type_free(number);
    if (weft_close(file) < 0)
        return failed("close");
    return weft_disconnect(fs) < 0 ? failed("disconnect") : 0;
}
