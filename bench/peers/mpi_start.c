// How long a job takes to start, from the start of its first process until MPI_Init and a
// barrier are over at the last, and what a rank has then: descriptors, threads, mappings, and
// memory of its own (proc_pid_smaps_rollup(5)). The figures are those of bench start.
//
//     mpi_start [-p provider]
#include <dirent.h>

#include "mpi_figures.h"

enum { DESCRIPTORS, THREADS, MAPPINGS, PRIVATE, FIGURES };

static long entries(const char *path) {
    DIR *d = opendir(path);
    if (!d) fail("cannot read", path);
    long n = 0;
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

// Counts the lines of a file, or with names, adds up the numbers of the lines that begin so.
static double lines(const char *path, const char *const names[]) {
    FILE *f = fopen(path, "r");
    if (!f) fail("cannot read", path);
    double sum = 0;
    char line[4096];
    while (fgets(line, sizeof line, f)) {
        if (!names && strchr(line, '\n')) sum++;
        for (int i = 0; names && names[i]; i++)
            if (!strncmp(line, names[i], strlen(names[i]))) sum += strtod(line + strlen(names[i]), NULL);
    }
    fclose(f);
    return sum;
}

int main(int argc, char **argv) {
    double first = now_ns() - own_cpu_ns();
    start_mpi(&argc, &argv, 1, 0);
    MPI_Barrier(MPI_COMM_WORLD);
    double usable = now_ns(), begin, end;
    struct options o = parse_options(argc, argv, "start");
    static const char *const private[] = {"Private_Clean:", "Private_Dirty:", NULL};
    double own[FIGURES];
    own[DESCRIPTORS] = (double)entries("/proc/self/fd") - 1; // that of the folder itself
    own[THREADS] = (double)entries("/proc/self/task");
    own[MAPPINGS] = lines("/proc/self/maps", NULL);
    own[PRIVATE] = lines("/proc/self/smaps_rollup", private);
    MPI_Reduce(&first, &begin, 1, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
    MPI_Reduce(&usable, &end, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    double *all = must_alloc((size_t)size * sizeof *all);
    static const struct { const char *name, *unit; } figures[FIGURES] = {{"descriptors", "1"}, {"threads", "1"}, {"mappings", "1"}, {"private", "KiB"}};
    print_value(&o, "start", "init", NULL, "ns", 0, end - begin); // the figure of the pattern
    for (int i = 0; i < FIGURES; i++) {
        MPI_Gather(&own[i], 1, MPI_DOUBLE, all, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        print_figure(&o, "start", "init", figures[i].name, figures[i].unit, 0, all, size);
    }
    end_mpi();
    return 0;
}
