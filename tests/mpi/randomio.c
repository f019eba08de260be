/* Random views, memory types, methods and hints against a model that holds the file byte by byte.
 *
 *   mpirun -n 8 randomio FILE [ROUNDS [SECONDS]]
 *
 * WEFT_TEST_SEED begins with that seed; what fails says its own. Words in WEFT_MPI_TEST_SKIP leave out what an MPI cannot:
 * eof (reads over the end), holes (what they read as), atomic, shared (pointers), darray, large (counts), pairs,
 * memory (types other than the element), elements (types other than MPI's own), structs (as views), hints. */
#include <time.h>

#include "methods.h"
#include "randomtypes.h"

enum { FILE_MAX = 1 << 16, STREAM_MAX = 4000 };

/* How the ranks share the file. */
enum sharing { REGIONS, WOVEN, TILES, PARTITION, DARRAY, COMMON, SHARINGS };

static const char *const sharing_names[] = {"regions", "woven", "tiles", "partition", "darray", "common"};

/* What one rank accesses. */
struct part {
    int64_t start; /* of its view */
    const struct type *view;
    const struct type *memory;
    int64_t offset, count; /* in elements of the view, in items of memory */
};

static unsigned char model[FILE_MAX + 64], is_there[FILE_MAX], ever_there[FILE_MAX];
static int64_t model_end;
static MPI_Comm team;
static int members;
static struct type *element;
/* Of the element: MPI libraries round extents that are no multiples as they like. */
static int alignment;

static struct type *random_base(struct random *random) {
    static const int alignments[] = {1, 2, 4, 8, 4, 8};
    int kind = below(random, is_left_out("pairs") ? 4 : 6);
    alignment = alignments[kind];
    switch (kind) {
    case 0: return plain(MPI_BYTE, 1, "byte");
    case 1: return plain(MPI_SHORT, 2, "short");
    case 2: return plain(MPI_INT, 4, "int");
    case 3: return plain(MPI_DOUBLE, 8, "double");
    case 4: return pair(MPI_SHORT_INT, 2, 4, 4, 8, "short_int");
    default: return pair(MPI_DOUBLE_INT, 8, 8, 4, 16, "double_int");
    }
}

static struct type *random_element(struct random *random) {
    struct type *base = random_base(random);
    switch (is_left_out("elements") ? 3 : below(random, 4)) {
    case 0: return contiguous_of(between(random, 1, 3), base);
    case 1: return one_in(random, 2) ? resized_of(0, 2 * extent_of(&base->map), base) : dup_of(base);
    default: return base;
    }
}

/* Slots of elements, each of one random rank; the view of `process` has its own. */
static struct type *partition_of(struct random *random, int process) {
    int slots = between(random, members, 40), way = below(random, 3), count = 0;
    int64_t places[ITEMS_MAX], ones[ITEMS_MAX], extent = extent_of(&element->map);
    for (int i = 0; i < slots; i++) {
        int owner = i < members ? i : below(random, members);
        ones[i] = 1;
        if (owner == process) places[count++] = i * (way ? extent : 1);
    }
    struct type *type = way == 0   ? indexed_of(count, ones, places, element)
                        : way == 1 ? hindexed_block_of(count, 1, places, element)
                                   : hindexed_of(count, ones, places, element);
    return resized_of(0, slots * extent, type);
}

static void choose_view(struct random *random, enum sharing sharing, int process, struct part *part) {
    int64_t extent = extent_of(&element->map), begin = below(random, 40);
    struct shape shape = {.is_view = 1, .unit = extent, .bytes_max = 1500, .extent_max = FILE_MAX / 20};
    int depth = between(random, 0, 3);
    *part = (struct part){.start = begin};
    if (sharing == REGIONS) {
        /* A construction of its own for each rank. */
        struct random own = {next_random(random) + (uint64_t)process};
        part->start += process * (FILE_MAX / members);
        part->view = random_type(&own, &shape, element, between(&own, 0, 3));
    } else if (sharing == WOVEN) {
        struct random own = {next_random(random) + (uint64_t)process};
        int run = between(random, 1, 4);
        struct type *leaf = resized_of(0, members * run * extent, contiguous_of(run, element));
        shape.unit = members * run * extent;
        part->start += process * run * extent;
        part->view = random_type(&own, &shape, leaf, between(&own, 0, 2));
    } else if (sharing == TILES) {
        const struct type *tile = random_type(random, &shape, element, depth);
        int64_t span = tile->map.pieces[tile->map.count - 1].at + tile->map.pieces[tile->map.count - 1].bytes;
        span = (span + extent - 1) / extent * extent;
        part->start += process * span;
        part->view = resized_of(0, members * span, tile);
    } else if (sharing == PARTITION) {
        part->view = partition_of(random, process);
    } else if (sharing == DARRAY) {
        part->view = random_share(random, members, process, element);
    } else {
        part->view = random_type(random, &shape, element, depth);
    }
}

/* The last byte that an access touches, in the file. */
static int64_t last_byte(const struct part *part, int64_t bytes) {
    return part->start + nth_byte(&part->view->map, part->offset * element->map.bytes + bytes - 1);
}

/* Chooses memory, and how much from where: as much as fits. */
static void choose_access(struct random *random, enum sharing sharing, int process, struct part *part) {
    struct shape shape = {.unit = alignment, .bytes_max = STREAM_MAX / 2, .extent_max = 20000};
    int depth = between(random, 0, 3), tries = 6;
    int64_t limit = sharing == REGIONS ? (process + 1) * (int64_t)(FILE_MAX / members) : FILE_MAX;
    part->memory = random_type(random, &shape, element, depth);
    if (is_left_out("memory")) part->memory = element;
    int items_max = (int)(STREAM_MAX / part->memory->map.bytes), reach = between(random, 0, 200);
    part->count = between(random, one_in(random, 8) ? 0 : 1, items_max < 20 ? items_max : 20);
    part->offset = below(random, reach + 1);
    if (part->view->map.bytes == 0) part->count = 0;
    while (part->count && tries-- && last_byte(part, part->count * part->memory->map.bytes) >= limit) {
        part->count = (part->count + 1) / 2;
        part->offset /= 3;
        if (!tries) part->count = 0;
    }
}

/* All see the same view: their parts follow each other. Says where they end. */
static int64_t line_up(struct part *parts, int64_t from) {
    for (int i = 0; i < members; i++) {
        int64_t bytes = parts[i].count * parts[i].memory->map.bytes;
        parts[i].offset = from;
        if (bytes && last_byte(&parts[i], bytes) >= FILE_MAX) parts[i].count = bytes = 0;
        from += bytes / element->map.bytes;
    }
    return from;
}

static unsigned salt_of(uint64_t seed, int turn, int process) { return (unsigned)(seed * 131 + (unsigned)turn * 17 + (unsigned)process); }

static void write_to_model(const struct part *part, unsigned salt, int64_t low) {
    int64_t bytes = part->count * part->memory->map.bytes;
    for (int64_t i = 0; i < bytes; i++) {
        int64_t at = part->start + nth_byte(&part->view->map, part->offset * element->map.bytes + i);
        CHECK(at >= 0 && at < FILE_MAX);
        CHECK(!is_there[at]); /* two ranks, or twice by one: the test is wrong */
        is_there[at] = ever_there[at] = 1;
        model[at] = pattern(nth_byte(&part->memory->map, i) - low, salt);
        if (at >= model_end) model_end = at + 1;
    }
}

static void check_file(MPI_File raw) {
    static unsigned char is[FILE_MAX + 64];
    MPI_Status status;
    MPI_Offset bytes;
    MUST(MPI_File_sync(raw));
    MUST(MPI_File_get_size(raw, &bytes));
    EQUAL(bytes, model_end);
    MUST(MPI_File_read_at(raw, 0, is, FILE_MAX + 64, MPI_BYTE, &status));
    COUNTS(&status, MPI_BYTE, (int)model_end);
    if (is_left_out("holes")) /* what nobody wrote may be anything */
        for (int64_t i = 0; i < model_end; i++)
            if (!ever_there[i]) model[i] = is[i];
    SAME(is, model, model_end);
}

static int take_turns(MPI_File file, enum method method, int writes, int is_large, const struct part *part,
                      struct memory *memory, MPI_Status *status) {
    int turns = method == SHARED || method == ISHARED ? members : 1, code = MPI_SUCCESS;
    for (int turn = 0; turn < turns; turn++) {
        if (turns == 1 || turn == rank) {
#if HAS_LARGE_COUNTS
            if (is_large)
                code = data_access_large(file, method, writes, part->offset, memory->start, part->count,
                                         part->memory->mpi, status);
            else
#endif
                code = data_access(file, method, writes, part->offset, memory->start, (int)part->count,
                                   part->memory->mpi, status);
        }
        if (turns > 1) MPI_Barrier(team);
    }
    (void)is_large;
    return code;
}

/* The bytes of a read that the file has: those before its end. */
static int64_t bytes_there(const struct part *part, int64_t bytes) {
    while (bytes > 0 && last_byte(part, bytes) >= model_end) bytes--;
    return bytes;
}

static void write_once(MPI_File file, MPI_File raw, enum method method, int is_large, struct part *parts,
                       uint64_t seed, int turn) {
    struct memory memory = memory_for(&parts[rank].memory->map, parts[rank].count);
    MPI_Status status;
    fill(memory.all, 0, (size_t)memory.bytes, salt_of(seed, turn, rank));
    MUST(take_turns(file, method, 1, is_large, &parts[rank], &memory, &status));
    COUNTS(&status, MPI_BYTE, (int)(parts[rank].count * parts[rank].memory->map.bytes));
    free(memory.all);
    memset(is_there, 0, sizeof is_there);
    for (int i = 0; i < members; i++) {
        struct memory theirs = memory_for(&parts[i].memory->map, parts[i].count);
        free(theirs.all);
        write_to_model(&parts[i], salt_of(seed, turn, i), theirs.low);
    }
    MUST(MPI_File_sync(file));
    MPI_Barrier(team);
    MUST(MPI_File_sync(file));
    if (rank == 0) check_file(raw);
    MPI_Barrier(team);
    if (is_left_out("holes")) MUST(MPI_Bcast(model, FILE_MAX, MPI_BYTE, 0, team));
}

static void read_once(MPI_File file, enum method method, int is_large, const struct part *part) {
    struct memory memory = memory_for(&part->memory->map, part->count);
    MPI_Status status;
    unsigned char *should = allocate((size_t)memory.bytes);
    memset(memory.all, 0xee, (size_t)memory.bytes);
    memset(should, 0xee, (size_t)memory.bytes);
    MUST(take_turns(file, method, 0, is_large, part, &memory, &status));
    int64_t there = bytes_there(part, part->count * part->memory->map.bytes);
    COUNTS(&status, MPI_BYTE, (int)there);
    for (int64_t i = 0; i < there; i++)
        should[nth_byte(&part->memory->map, i) - memory.low] =
            model[part->start + nth_byte(&part->view->map, part->offset * element->map.bytes + i)];
    SAME(memory.all, should, memory.bytes);
    free(memory.all);
    free(should);
    MPI_Barrier(team);
}

static void set_random_hint(struct random *random, MPI_Info info) {
    static const char *const hints[][5] = {
        {"weft_method", "auto", "multiple", "sieve", "two_phase"},
        {"weft_method", "list", "list", "sieve", "two_phase"},
        {"romio_cb_write", "enable", "disable", "automatic", "enable"},
        {"romio_cb_read", "enable", "disable", "automatic", "enable"},
        {"romio_ds_write", "enable", "disable", "automatic", "enable"},
        {"romio_ds_read", "enable", "disable", "automatic", "enable"},
        {"cb_nodes", "1", "2", "3", "8"},
        {"cb_buffer_size", "4096", "1048576", "10000", "65536"},
        {"ind_rd_buffer_size", "4096", "100000", "65536", "10000"},
        {"ind_wr_buffer_size", "4096", "100000", "65536", "10000"},
        {"striping_unit", "4096", "65536", "4096", "65536"},
        {"striping_factor", "1", "2", "3", "4"},
    };
    const char *const *hint = hints[below(random, sizeof hints / sizeof *hints)];
    MUST(MPI_Info_set(info, (char *)hint[0], (char *)hint[1 + below(random, 4)]));
}

/* A file of its own for the round: opened, and with some content. */
static MPI_File begin_file(struct random *random, MPI_File *raw) {
    MPI_File file;
    MPI_Info info = MPI_INFO_NULL;
    int hints = below(random, 4), background = one_in(random, 2) ? below(random, FILE_MAX / 2) : 0;
    if (!is_left_out("hints")) {
        MUST(MPI_Info_create(&info));
        for (int i = 0; i < hints; i++) set_random_hint(random, info);
    }
    if (rank == 0) MPI_File_delete(file_name, MPI_INFO_NULL);
    MPI_Barrier(team);
    MUST(MPI_File_open(team, file_name, MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file));
    if (info != MPI_INFO_NULL) MUST(MPI_Info_free(&info));
    memset(model, 0, sizeof model);
    fill(model, 0, (size_t)background, (unsigned)next_random(random));
    model_end = background;
    memset(ever_there, 0, sizeof ever_there);
    memset(ever_there, 1, (size_t)background);
    if (rank == 0) {
        *raw = open_by(MPI_COMM_SELF, file_name, MPI_MODE_RDWR);
        if (background) MUST(MPI_File_write_at(*raw, 0, model, background, MPI_BYTE, MPI_STATUS_IGNORE));
        MUST(MPI_File_sync(*raw));
    }
    MPI_Barrier(team);
    MUST(MPI_File_sync(file));
    if (one_in(random, 8) && !is_left_out("atomic")) MUST(MPI_File_set_atomicity(file, 1));
    return file;
}

/* One file, a few views, a few accesses by each. */
static void play(uint64_t seed) {
    static char text[900];
    struct random random = {seed};
    MPI_File raw = MPI_FILE_NULL, file = begin_file(&random, &raw);
    int views = between(&random, 1, 2), turn = 0;
    struct part parts[64];
    for (int view = 0; view < views; view++) {
        by_large_counts = HAS_LARGE_COUNTS && one_in(&random, 4) && !is_left_out("large");
        only_maps = 0;
        element = random_element(&random);
        enum sharing sharing = (enum sharing)below(&random, is_left_out("darray") ? DARRAY : SHARINGS);
        if (is_left_out("darray") && one_in(&random, 5)) sharing = COMMON;
        struct random before = random;
        for (int i = 0; i < members; i++) {
            only_maps = i != rank;
            random = before;
            choose_view(&random, sharing, i, &parts[i]);
            if (parts[i].view->map.bytes == 0) parts[i].view = element, parts[i].start = FILE_MAX; /* it has no share */
        }
        snprintf(text, sizeof text, "WEFT_TEST_SEED=%llu: %d ranks, %s, view from %lld: %s", (unsigned long long)seed,
                 members, sharing_names[sharing], (long long)parts[rank].start, parts[rank].view->text);
        case_name = text;
        check_map(parts[rank].view);
        MUST(MPI_File_set_view(file, parts[rank].start, element->mpi, parts[rank].view->mpi, "native", MPI_INFO_NULL));
        int accesses = between(&random, 1, 4);
        size_t length = strlen(text);
        for (int access = 0; access < accesses; access++, turn++) {
            int may_share = sharing == COMMON && !is_left_out("shared");
            enum method method = (enum method)below(&random, may_share ? METHODS : SHARED);
            int writes = !one_in(&random, 3), is_large = one_in(&random, 4) && !is_left_out("large");
            for (int i = 0; i < members; i++) {
                only_maps = i != rank;
                choose_access(&random, sharing, i, &parts[i]);
            }
            int64_t from = below(&random, 100);
            if (sharing == COMMON) line_up(parts, from);
            if (uses_shared_pointer(method)) MUST(MPI_File_seek_shared(file, from, MPI_SEEK_SET));
            const struct part *part = &parts[rank];
            snprintf(text + length, sizeof text - length, "; %s%s of %lld x %s at %lld", writes ? "write" : "read",
                     method_names[method], (long long)part->count, part->memory->text, (long long)part->offset);
            check_map(part->memory);
            if (writes) write_once(file, raw, method, is_large, parts, seed, turn);
            else {
                /* For the shared pointer all have to move it as they said they would. */
                for (int i = 0; i < members; i++)
                    if (is_left_out("eof"))
                        parts[i].count = bytes_there(&parts[i], parts[i].count * parts[i].memory->map.bytes) /
                                         parts[i].memory->map.bytes;
                if (sharing == COMMON) line_up(parts, from);
                read_once(file, method, is_large, part);
            }
        }
        free_types();
    }
    if (raw != MPI_FILE_NULL) MUST(MPI_File_close(&raw));
    MUST(MPI_File_close(&file));
    MPI_Barrier(team);
    if (rank == 0) MUST(MPI_File_delete(file_name, MPI_INFO_NULL));
}

int main(int argc, char **argv) {
    begin(&argc, &argv, MPI_THREAD_SINGLE);
    int rounds = argc > 2 ? atoi(argv[2]) : 50, done = 0;
    double seconds = argc > 3 ? atof(argv[3]) : 1e9, start = MPI_Wtime();
    const char *given = getenv("WEFT_TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL) * 1000 % 4000000000u + (uint64_t)getpid() % 1000;
    MUST(MPI_Bcast(&seed, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD));
    for (;; seed++, done++) {
        int goes_on = done < rounds && MPI_Wtime() - start < seconds;
        MUST(MPI_Bcast(&goes_on, 1, MPI_INT, 0, MPI_COMM_WORLD));
        if (!goes_on) break;
        struct random random = {seed ^ 0x5bd1e995};
        members = between(&random, 1, size);
        MUST(MPI_Comm_split(MPI_COMM_WORLD, rank < members, rank, &team));
        if (rank < members) play(seed);
        MUST(MPI_Comm_free(&team));
    }
    if (rank == 0) fprintf(stderr, "%d rounds\n", done);
    return end();
}
