/* The part of fortran.F90 that is in C: it gets a file as Fortran has it. */
#include <mpi.h>

long long size_in_c(MPI_Fint handle);

long long size_in_c(MPI_Fint handle) {
    MPI_File file = MPI_File_f2c(handle);
    MPI_Offset bytes = -1;
    if (file == MPI_FILE_NULL || MPI_File_c2f(file) != handle) return -1;
    if (MPI_File_get_size(file, &bytes) != MPI_SUCCESS) return -2;
    return bytes;
}
