/* The 34 routines of data access as one function. */
#ifndef WEFT_MPI_METHODS_H
#define WEFT_MPI_METHODS_H

#include "check.h"

enum method {
    AT,
    IAT,
    AT_ALL,
    AT_ALL_SPLIT,
    IAT_ALL,
    PLAIN,
    IPLAIN,
    ALL,
    ALL_SPLIT,
    IALL,
    SHARED,
    ISHARED,
    ORDERED,
    ORDERED_SPLIT,
    METHODS
};

static UNUSED const char *const method_names[METHODS] = {
    "_at",  "i_at",  "_at_all", "_at_all_begin/end", "i_at_all", "",         "i",
    "_all", "_all_begin/end", "i_all",   "_shared", "i_shared", "_ordered", "_ordered_begin/end",
};

static UNUSED int is_collective(enum method method) {
    return (method >= AT_ALL && method <= IAT_ALL) || (method >= ALL && method <= IALL) || method >= ORDERED;
}

static UNUSED int uses_shared_pointer(enum method method) { return method >= SHARED; }

static UNUSED int uses_own_pointer(enum method method) { return method >= PLAIN && method <= IALL; }

/* Waits, sometimes by asking again and again. */
static int complete(MPI_Request *request, MPI_Status *status) {
    static int turn;
    if (turn++ % 2) return MPI_Wait(request, status);
    int done = 0, code = MPI_SUCCESS;
    while (!done && code == MPI_SUCCESS) code = MPI_Test(request, &done, status);
    return code;
}

#define CALL(suffix, ...) (writes ? MPI_File_write##suffix(__VA_ARGS__) : MPI_File_read##suffix(__VA_ARGS__))
#define START(suffix, ...) (writes ? MPI_File_iwrite##suffix(__VA_ARGS__) : MPI_File_iread##suffix(__VA_ARGS__))
#define SPLIT(begun, ended) ((code = (begun)) != MPI_SUCCESS ? code : (ended))
#define WAITED(started) ((code = (started)) != MPI_SUCCESS ? code : complete(&request, status))
#define DEFINE(name, large, number) \
    static UNUSED int name(MPI_File file, enum method method, int writes, MPI_Offset at, void *buffer, \
                           number count, MPI_Datatype type, MPI_Status *status) { \
        MPI_Request request; \
        int code; \
        if (uses_own_pointer(method) && (code = MPI_File_seek(file, at, MPI_SEEK_SET)) != MPI_SUCCESS) return code; \
        switch (method) { \
        case AT: return CALL(_at##large, file, at, buffer, count, type, status); \
        case IAT: return WAITED(START(_at##large, file, at, buffer, count, type, &request)); \
        case AT_ALL: return CALL(_at_all##large, file, at, buffer, count, type, status); \
        case AT_ALL_SPLIT: \
            return SPLIT(CALL(_at_all_begin##large, file, at, buffer, count, type), \
                         CALL(_at_all_end, file, buffer, status)); \
        case IAT_ALL: return WAITED(START(_at_all##large, file, at, buffer, count, type, &request)); \
        case PLAIN: return CALL(large, file, buffer, count, type, status); \
        case IPLAIN: return WAITED(START(large, file, buffer, count, type, &request)); \
        case ALL: return CALL(_all##large, file, buffer, count, type, status); \
        case ALL_SPLIT: \
            return SPLIT(CALL(_all_begin##large, file, buffer, count, type), CALL(_all_end, file, buffer, status)); \
        case IALL: return WAITED(START(_all##large, file, buffer, count, type, &request)); \
        case SHARED: return CALL(_shared##large, file, buffer, count, type, status); \
        case ISHARED: return WAITED(START(_shared##large, file, buffer, count, type, &request)); \
        case ORDERED: return CALL(_ordered##large, file, buffer, count, type, status); \
        case ORDERED_SPLIT: \
            return SPLIT(CALL(_ordered_begin##large, file, buffer, count, type), \
                         CALL(_ordered_end, file, buffer, status)); \
        default: FAIL("no method %d", (int)method); \
        } \
        return MPI_ERR_INTERN; \
    }

/* Reads or writes by this method. `at` is an offset of the view; routines with the file's own pointer seek to it, and
 * those with the shared pointer do not know it. */
DEFINE(data_access, , int)
#if HAS_LARGE_COUNTS
DEFINE(data_access_large, _c, MPI_Count)
#endif

#undef CALL
#undef START
#undef SPLIT
#undef WAITED
#undef DEFINE
#endif
