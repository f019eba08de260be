/* MPI-IO, measured by bench/mpi.sh:
 *
 *   mpi pattern all|alone PATTERN NAME:HINTS:PATH ...   each writes a new file and reads it: NAME write read, in MiB/s
 *   mpi contiguous MIB CALL_BYTES HINTS PATH            MPI-IO and the C API, written and read
 *   mpi by-hand PATTERN STRIP SERVERS TURNS PATH        a collective write, and the same by MPI_Alltoallv and the C API
 *   mpi opens TURNS PATH                                milliseconds of open and close
 *   mpi ordered|shared BYTES CALLS PATH                 writes at the shared pointer; no gap, no overlap
 *   mpi memory PATTERN HINTS PATH|none                  largest memory of a process over its buffers, KiB
 *
 * Every process reads what its neighbour wrote, and checks it. Paths for the C API are below $WEFT_URL. */
#include "mpi-patterns.h"
#include <weft.h>

#define MIB (1024.0 * 1024)

static uint64_t writes; /* each has data of its own */

static double written(MPI_File file, int is_alone, const struct pattern *mine, char *data) {
    double seconds = 0;
    MPI(MPI_File_set_view(file, 0, MPI_BYTE, mine->file, "native", MPI_INFO_NULL));
    for (int step = 0; step < mine->steps; step++) {
        fill(data, mine->buffer_bytes, rank, writes + step);
        MPI_Offset at = step * mine->process_bytes;
        double start = start_together();
        if (is_alone) MPI(MPI_File_write_at(file, at, data, 1, mine->memory, MPI_STATUS_IGNORE));
        else MPI(MPI_File_write_at_all(file, at, data, 1, mine->memory, MPI_STATUS_IGNORE));
        seconds += seconds_since(start);
    }
    return seconds;
}

static double read_and_checked(MPI_File file, int is_alone, const struct pattern *others, int owner, char *data, char *found, const char *name) {
    double seconds = 0;
    MPI(MPI_File_set_view(file, 0, MPI_BYTE, others->file, "native", MPI_INFO_NULL));
    for (int step = 0; step < others->steps; step++) {
        fill(data, others->buffer_bytes, owner, writes + step);
        memset(found, 0xee, others->buffer_bytes);
        MPI_Offset at = step * others->process_bytes;
        double start = start_together();
        if (is_alone) MPI(MPI_File_read_at(file, at, found, 1, others->memory, MPI_STATUS_IGNORE));
        else MPI(MPI_File_read_at_all(file, at, found, 1, others->memory, MPI_STATUS_IGNORE));
        seconds += seconds_since(start);
        check_same(others, data, found, name);
    }
    return seconds;
}

static void measure_pattern(int count, char **words) {
    MUST(count >= 3, "mpi pattern all|alone PATTERN NAME:HINTS:PATH ...");
    int is_alone = !strcmp(words[0], "alone"), owner = (rank + 1) % size;
    struct pattern mine = pattern_of(words[1], rank), others = pattern_of(words[1], owner);
    char *data = memory_of(mine.buffer_bytes), *found = memory_of(others.buffer_bytes);
    writes = (uint64_t)time(NULL) % 1000000;
    for (int i = 2; i < count; i++) {
        char *path = words[i], *name = strsep(&path, ":"), *hints = strsep(&path, ":");
        MUST(path, "NAME:HINTS:PATH");
        MPI(MPI_Bcast(&writes, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD));
        MPI_File file = opened(path, MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_RDWR, hints);
        double write = written(file, is_alone, &mine, data);
        double read = read_and_checked(file, is_alone, &others, owner, data, found, name);
        MPI(MPI_File_close(&file));
        removed(path);
        double mib = mine.array_bytes * mine.steps / MIB;
        if (rank == 0) printf("%s %.1f %.1f\n", name, mib / write, mib / read), fflush(stdout);
        writes += 100;
    }
}

static weft_fs *connected(void) {
    weft_fs *fs = weft_connect(getenv("WEFT_URL"), NULL);
    MUST(fs, "%s", weft_last_error());
    return fs;
}

static weft_file *created(weft_fs *fs, const char *path, const struct weft_layout *layout) {
    weft_file *file = NULL;
    if (rank == 0) MUST((file = weft_creat(fs, path, 0644, layout)), "%s", weft_last_error());
    MPI(MPI_Barrier(MPI_COMM_WORLD));
    if (rank != 0) MUST((file = weft_open(fs, path, O_RDWR, 0)), "%s", weft_last_error());
    return file;
}

enum way { C_API, AT, AT_ALL };
static const char *const way_names[] = { "c_api", "at", "at_all" };

struct place {
    MPI_File file;
    weft_file *native;
};

/* One call of the size asked for. */
static void moved(enum way way, int writes_it, struct place place, char *data, int bytes, off_t at) {
    if (way == C_API) {
        ssize_t done = writes_it ? weft_pwrite(place.native, data, bytes, at) : weft_pread(place.native, data, bytes, at);
        MUST(done == bytes, "%s", weft_last_error());
    } else if (writes_it) {
        MPI((way == AT ? MPI_File_write_at : MPI_File_write_at_all)(place.file, at, data, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
    } else {
        MPI((way == AT ? MPI_File_read_at : MPI_File_read_at_all)(place.file, at, data, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
    }
}

static void measure_contiguous(int count, char **words) {
    MUST(count == 4, "mpi contiguous MIB CALL_BYTES HINTS PATH");
    size_t bytes = atol(words[0]) << 20;
    int call = atoi(words[1]), owner = (rank + 1) % size;
    char *data = memory_of(bytes), *found = memory_of(bytes), path[512];
    weft_fs *fs = connected();
    snprintf(path, sizeof path, "weft:%s", words[3]);
    struct pattern all = { .process_bytes = (int64_t)bytes, .is_contiguous = 1 };
    /* The first is not counted: it gets memory from the machine. */
    static const enum way turns[] = { AT_ALL, C_API, AT, AT_ALL, AT_ALL, AT, C_API };
    for (int turn = 0; turn < (int)(sizeof turns / sizeof *turns); turn++) {
        enum way way = turns[turn];
        struct place place = { MPI_FILE_NULL, NULL };
        double seconds[2];
        if (way == C_API) place.native = created(fs, words[3], NULL);
        else place.file = opened(path, MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_RDWR, words[2]);
        for (int reads = 0; reads < 2; reads++) {
            off_t base = (off_t)bytes * (reads ? owner : rank);
            char *buffer = reads ? found : data;
            fill(data, bytes, reads ? owner : rank, turn);
            double start = start_together();
            for (size_t at = 0; at < bytes; at += call) moved(way, !reads, place, buffer + at, call, base + at);
            seconds[reads] = seconds_since(start);
        }
        check_same(&all, data, found, way_names[way]);
        memset(found, 0, bytes);
        if (way == C_API) weft_close(place.native);
        else MPI(MPI_File_close(&place.file));
        removed(path);
        double mib = bytes * size / MIB;
        if (rank == 0 && turn > 0) printf("%s %.1f %.1f\n", way_names[way], mib / seconds[0], mib / seconds[1]);
    }
    weft_disconnect(fs);
}

/* What an expert writes instead of a collective write: pieces go to as many writers as there are servers, each of which
 * has one range of the array, and writes it. Memory for it is there before. */
struct by_hand {
    int writers, *send_counts, *send_places, *receive_counts, *receive_places;
    int64_t range, piece, stride; /* bytes */
    int pieces;
    char *received, *ready;
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* Bytes of a process's pieces that are below an offset of the file. */
static int64_t bytes_below(const struct by_hand *plan, int owner, int64_t offset) {
    int64_t from_first = offset - owner * plan->piece;
    if (from_first <= 0) return 0;
    int64_t whole = least(from_first / plan->stride, plan->pieces);
    if (whole == plan->pieces) return whole * plan->piece;
    return whole * plan->piece + least(from_first % plan->stride, plan->piece);
}

static struct by_hand planned(const struct pattern *pattern, int pieces, int servers) {
    struct by_hand plan = { .writers = (int)least(servers, size), .pieces = pieces };
    plan.stride = pattern->array_bytes / pieces;
    plan.piece = plan.stride / size;
    plan.range = (pattern->array_bytes + plan.writers - 1) / plan.writers;
    int *numbers = calloc(4 * (size_t)size, sizeof *numbers);
    plan.send_counts = numbers, plan.send_places = numbers + size;
    plan.receive_counts = numbers + 2 * size, plan.receive_places = numbers + 3 * size;
    int64_t place = 0;
    for (int other = 0; other < size; other++) {
        int64_t begin = bytes_below(&plan, rank, other * plan.range), end = bytes_below(&plan, rank, (other + 1) * plan.range);
        if (other < plan.writers) plan.send_counts[other] = (int)(end - begin);
        plan.send_places[other] = (int)begin;
        if (rank >= plan.writers) continue;
        int64_t from = bytes_below(&plan, other, rank * plan.range), to = bytes_below(&plan, other, (rank + 1) * plan.range);
        plan.receive_counts[other] = (int)(to - from);
        plan.receive_places[other] = (int)place;
        place += to - from;
    }
    plan.received = memory_of(plan.range), plan.ready = memory_of(plan.range);
    return plan;
}

static void write_by_hand(const struct by_hand *plan, const char *data, weft_file *file, int64_t array_bytes) {
    MPI(MPI_Alltoallv(data, plan->send_counts, plan->send_places, MPI_BYTE, plan->received, plan->receive_counts, plan->receive_places, MPI_BYTE, MPI_COMM_WORLD));
    if (rank >= plan->writers) return;
    int64_t first = rank * plan->range, end = least(first + plan->range, array_bytes);
    for (int owner = 0; owner < size; owner++) {
        const char *from = plan->received + plan->receive_places[owner];
        for (int i = 0; i < plan->pieces; i++) {
            int64_t begin = most(i * plan->stride + owner * plan->piece, first);
            int64_t until = least(i * plan->stride + (owner + 1) * plan->piece, end);
            if (until <= begin) continue;
            memcpy(plan->ready + (begin - first), from, until - begin);
            from += until - begin;
        }
    }
    MUST(weft_pwrite(file, plan->ready, end - first, first) == end - first, "%s", weft_last_error());
}

static void measure_by_hand(int count, char **words) {
    MUST(count == 5, "mpi by-hand PATTERN STRIP SERVERS TURNS PATH");
    struct pattern mine = pattern_of(words[0], rank), others = pattern_of(words[0], (rank + 1) % size);
    int strip = atoi(words[1]), servers = atoi(words[2]), turns = atoi(words[3]), pieces = 1;
    sscanf(words[0], "%*[^:]:%*d:%d", &pieces);
    char *data = memory_of(mine.buffer_bytes), *found = memory_of(mine.buffer_bytes), path[512], hints[128];
    weft_fs *fs = connected();
    struct weft_layout layout = { .strip_bytes = (uint32_t)strip, .server_count = (uint16_t)servers, .first_server = -1 };
    struct by_hand plan = planned(&mine, pieces, servers);
    snprintf(path, sizeof path, "weft:%s", words[4]);
    snprintf(hints, sizeof hints, "striping_unit=%d,striping_factor=%d", strip, servers);
    for (int turn = 0; turn < 2 * turns + 2; turn++) {
        int is_by_hand = turn % 2;
        writes = 10000 + turn * 100;
        double seconds;
        if (is_by_hand) {
            weft_file *file = created(fs, words[4], &layout);
            fill(data, mine.buffer_bytes, rank, writes);
            double start = start_together();
            write_by_hand(&plan, data, file, mine.array_bytes);
            seconds = seconds_since(start);
            weft_close(file);
            MPI(MPI_Barrier(MPI_COMM_WORLD));
        }
        MPI_File file = opened(path, is_by_hand ? MPI_MODE_RDWR : MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_RDWR, hints);
        if (!is_by_hand) seconds = written(file, 0, &mine, data);
        read_and_checked(file, 0, &others, (rank + 1) % size, data, found, path);
        MPI(MPI_File_close(&file));
        removed(path);
        if (rank == 0 && turn >= 2) printf("%s %.1f\n", is_by_hand ? "by_hand" : "collective", mine.array_bytes / MIB / seconds);
    }
    weft_disconnect(fs);
}

static void measure_opens(int count, char **words) {
    MUST(count == 2, "mpi opens TURNS PATH");
    double opening = 0, closing = 0;
    int turns = atoi(words[0]);
    /* The first makes connections, and is not counted. */
    for (int turn = 0; turn <= turns; turn++) {
        double start = start_together();
        MPI_File file = opened(words[1], MPI_MODE_CREATE | MPI_MODE_RDWR, "");
        double open = seconds_since(start);
        start = start_together();
        MPI(MPI_File_close(&file));
        double close = seconds_since(start);
        if (turn > 0) opening += open, closing += close;
        if (rank == 0 && turn == 0) printf("first %.3f\n", open * 1e3);
    }
    if (rank == 0) printf("open %.3f\nclose %.3f\n", opening / turns * 1e3, closing / turns * 1e3);
}

/* Records by all processes at the shared pointer. Each is there once, and nothing else. */
static void measure_shared(int is_ordered, int count, char **words) {
    MUST(count == 3, "mpi ordered|shared BYTES CALLS PATH");
    int bytes = atoi(words[0]), calls = atoi(words[1]);
    char *record = memory_of(bytes);
    MPI_File file = opened(words[2], MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_RDWR, "");
    double start = start_together();
    for (int i = 0; i < calls; i++) {
        fill(record, bytes, rank, i);
        ((int *)record)[0] = rank, ((int *)record)[1] = i;
        MPI((is_ordered ? MPI_File_write_ordered : MPI_File_write_shared)(file, record, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
    }
    double seconds = seconds_since(start);
    int64_t records = (int64_t)calls * size;
    MPI_Offset file_bytes;
    MPI(MPI_Barrier(MPI_COMM_WORLD));
    MPI(MPI_File_get_size(file, &file_bytes));
    MUST(file_bytes == records * bytes, "the file has %lld bytes instead of %lld", (long long)file_bytes, (long long)records * bytes);
    if (rank == 0) {
        char *found = memory_of(bytes), *is_there = calloc(records, 1);
        for (int64_t i = 0; i < records; i++) {
            MPI(MPI_File_read_at(file, i * bytes, found, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
            int whose = ((int *)found)[0], which = ((int *)found)[1];
            MUST(whose >= 0 && whose < size && which >= 0 && which < calls, "no record at %lld", (long long)i);
            MUST(!is_there[whose * calls + which]++, "record %d of %d is there twice", which, whose);
            MUST(!is_ordered || i == (int64_t)which * size + whose, "record %d of %d is out of order", which, whose);
            fill(record, bytes, whose, which);
            MUST(!memcmp(record + 8, found + 8, bytes - 8), "record %d of %d is mixed with another", which, whose);
        }
        printf("calls/s %.0f\n", records / seconds);
    }
    MPI(MPI_File_close(&file));
    removed(words[2]);
}

static long memory_kib(void) {
    char line[256];
    long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status)) sscanf(line, "VmHWM: %ld", &kib);
    fclose(status);
    return kib;
}

static void measure_memory(int count, char **words) {
    MUST(count == 3, "mpi memory PATTERN HINTS PATH|none");
    struct pattern mine = pattern_of(words[0], rank), others = pattern_of(words[0], (rank + 1) % size);
    char *data = memory_of(mine.buffer_bytes), *found = memory_of(mine.buffer_bytes);
    /* All that the program does by itself, also its messages. */
    fill(data, mine.buffer_bytes, rank, 0);
    check_same(&mine, data, data, "memory");
    start_together();
    MPI(MPI_Alltoall(data, 64, MPI_BYTE, found, 64, MPI_BYTE, MPI_COMM_WORLD));
    long before = memory_kib(), added, largest;
    if (strcmp(words[2], "none")) {
        MPI_File file = opened(words[2], MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_RDWR, words[1]);
        written(file, 0, &mine, data);
        read_and_checked(file, 0, &others, (rank + 1) % size, data, found, "memory");
        MPI(MPI_File_close(&file));
        removed(words[2]);
    }
    added = memory_kib() - before;
    MPI(MPI_Reduce(&added, &largest, 1, MPI_LONG, MPI_MAX, 0, MPI_COMM_WORLD));
    if (rank == 0) printf("added %ld\n", largest);
}

int main(int count, char **words) {
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MUST(count >= 2, "see the beginning of mpi.c");
    const char *what = words[1];
    words += 2, count -= 2;
    if (!strcmp(what, "pattern")) measure_pattern(count, words);
    else if (!strcmp(what, "contiguous")) measure_contiguous(count, words);
    else if (!strcmp(what, "by-hand")) measure_by_hand(count, words);
    else if (!strcmp(what, "opens")) measure_opens(count, words);
    else if (!strcmp(what, "ordered") || !strcmp(what, "shared")) measure_shared(*what == 'o', count, words);
    else if (!strcmp(what, "memory")) measure_memory(count, words);
    else MUST(0, "no measurement: %s", what);
    MPI_Finalize();
    return 0;
}
