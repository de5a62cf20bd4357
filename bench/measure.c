/*
 * measure: one figure about the file system below DIR.
 *
 *     measure WHAT DIR COUNT [THREADS]
 *
 * Prints one number: operations a second, MB a second, or microseconds, as the table at the end says. What a
 * measurement needs it finds below DIR, where an earlier one left it: `write` leaves the file that the reads use,
 * `create` the files that the others stat, rename and unlink. Caches are dropped by the caller, never here.
 *
 * Fresh memory is slow on a virtual machine that returns free pages to its host: `warm_memory` touches and frees as much
 * as a measurement will need, so that the page cache is filled at the speed of memory and not of the hypervisor.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MIB = 1 << 20, BLOCK = 4096, SMALL = 1024, THREADS_MAX = 64, PATH_LENGTH = 4096 };

static const char *directory;
static long count;
static int threads = 1;
static char *buffer; /* one MiB, touched */

static void die(const char *what, const char *path)
{
    fprintf(stderr, "measure: %s %s: %s\n", what, path, strerror(errno));
    exit(1);
}

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

static uint64_t dice(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void warm_memory(size_t bytes)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return;
    for (size_t at = 0; at < bytes; at += BLOCK)
        memory[at] = 1;
    munmap(memory, bytes);
}

static int open_large(int flags)
{
    char path[PATH_LENGTH];
    snprintf(path, sizeof path, "%s/large", directory);
    int descriptor = open(path, flags, 0644);
    if (descriptor < 0)
        die("cannot open", path);
    return descriptor;
}

static off_t size_of(int descriptor)
{
    struct stat about;
    if (fstat(descriptor, &about) != 0)
        die("cannot stat", directory);
    return about.st_size;
}

/* The name of small file `number` of a thread; each thread has a directory. */
static void small_path(char *path, int thread, long number, const char *suffix)
{
    snprintf(path, PATH_LENGTH, "%s/small-%d-%d/file-%06ld%s", directory, threads, thread, number, suffix);
}

/* MB/s of writing COUNT MiB in 1 MiB pieces to a new file, fsync included. */
static double sequential_write(void)
{
    warm_memory((size_t)count * 3 * MIB);
    double start = now();
    int descriptor = open_large(O_WRONLY | O_CREAT | O_TRUNC);
    for (long i = 0; i < count; i++) {
        memset(buffer, (int)(i % 251), 64); /* no two pieces are alike */
        if (write(descriptor, buffer, MIB) != MIB)
            die("cannot write in", directory);
    }
    if (fsync(descriptor) != 0)
        die("cannot fsync in", directory);
    double took = now() - start;
    close(descriptor);
    return (double)count * MIB / 1e6 / took;
}

/* MB/s of reading the large file in 1 MiB pieces. */
static double sequential_read(void)
{
    warm_memory((size_t)count * 3 * MIB);
    double start = now();
    int descriptor = open_large(O_RDONLY);
    off_t total = 0;
    for (ssize_t got; (got = read(descriptor, buffer, MIB)) != 0; total += got)
        if (got < 0)
            die("cannot read in", directory);
    double took = now() - start;
    if (total != (off_t)count * MIB)
        die("the large file is not as long as it was written in", directory);
    close(descriptor);
    return (double)total / 1e6 / took;
}

static void *read_random(void *argument)
{
    uint64_t state = 88172645463325252ULL + (uintptr_t)argument * 7919;
    int descriptor = open_large(O_RDONLY);
    off_t blocks = size_of(descriptor) / BLOCK;
    char block[BLOCK];
    for (long i = 0; i < count / threads; i++)
        if (pread(descriptor, block, BLOCK, (off_t)(dice(&state) % (uint64_t)blocks) * BLOCK) != BLOCK)
            die("cannot read in", directory);
    close(descriptor);
    return NULL;
}

static void *create_small(void *argument)
{
    char path[PATH_LENGTH];
    int thread = (int)(uintptr_t)argument;
    for (long i = 0; i < count / threads; i++) {
        small_path(path, thread, i, "");
        int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
        if (descriptor < 0 || write(descriptor, buffer, SMALL) != SMALL || close(descriptor) != 0)
            die("cannot create", path);
    }
    return NULL;
}

static void *stat_small(void *argument)
{
    char path[PATH_LENGTH];
    struct stat about;
    long each = count / threads;
    for (long i = 0; i < each; i++) { /* in an order that no read-ahead guesses; 7919 is prime to each */
        small_path(path, (int)(uintptr_t)argument, i * 7919 % each, "");
        if (lstat(path, &about) != 0 || about.st_size != SMALL)
            die("cannot stat", path);
    }
    return NULL;
}

static void *read_small(void *argument)
{
    char path[PATH_LENGTH], content[SMALL];
    for (long i = 0; i < count / threads; i++) {
        small_path(path, (int)(uintptr_t)argument, i, "");
        int descriptor = open(path, O_RDONLY);
        if (descriptor < 0 || read(descriptor, content, SMALL) != SMALL)
            die("cannot read", path);
        close(descriptor);
    }
    return NULL;
}

static void *rename_small(void *argument)
{
    char path[PATH_LENGTH], target[PATH_LENGTH];
    for (long i = 0; i < count / threads; i++) {
        small_path(path, (int)(uintptr_t)argument, i, "");
        small_path(target, (int)(uintptr_t)argument, i, "-renamed");
        if (rename(path, target) != 0)
            die("cannot rename", path);
    }
    return NULL;
}

static void *unlink_small(void *argument)
{
    char path[PATH_LENGTH];
    for (long i = 0; i < count / threads; i++) {
        small_path(path, (int)(uintptr_t)argument, i, "-renamed");
        if (unlink(path) != 0 && (small_path(path, (int)(uintptr_t)argument, i, ""), unlink(path) != 0))
            die("cannot unlink", path);
    }
    return NULL;
}

/* Operations a second of COUNT operations shared by the threads. */
static double rate(void *(*work)(void *))
{
    pthread_t crew[THREADS_MAX];
    double start = now();
    for (int i = 0; i < threads; i++)
        pthread_create(&crew[i], NULL, work, (void *)(uintptr_t)i);
    for (int i = 0; i < threads; i++)
        pthread_join(crew[i], NULL);
    return (double)(count / threads * threads) / (now() - start);
}

static double random_read(void) { return rate(read_random); }
static double stat_all(void) { return rate(stat_small); }
static double read_all(void) { return rate(read_small); }
static double rename_all(void) { return rate(rename_small); }
static double unlink_all(void) { return rate(unlink_small); }

static double create_all(void)
{
    for (int i = 0; i < threads; i++) {
        char path[PATH_LENGTH];
        snprintf(path, sizeof path, "%s/small-%d-%d", directory, threads, i);
        if (mkdir(path, 0755) != 0)
            die("cannot make", path);
    }
    return rate(create_small);
}

/* Random 4 KiB writes a second into the large file, the fsync at the end included. */
static double random_write(void)
{
    uint64_t state = 3141592653589793238ULL;
    int descriptor = open_large(O_WRONLY);
    off_t blocks = size_of(descriptor) / BLOCK;
    warm_memory((size_t)count * BLOCK * 3);
    double start = now();
    for (long i = 0; i < count; i++)
        if (pwrite(descriptor, buffer + i % 64 * BLOCK, BLOCK, (off_t)(dice(&state) % (uint64_t)blocks) * BLOCK) != BLOCK)
            die("cannot write in", directory);
    if (fsync(descriptor) != 0)
        die("cannot fsync in", directory);
    double took = now() - start;
    close(descriptor);
    return (double)count / took;
}

static int ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static pthread_barrier_t all; /* appenders, before and after each append */

/* Appends and fsyncs COUNT times, to a file of its own, each time together with the others. Returns the median
   microseconds from when all begin until all have ended. */
static double append_as(long number)
{
    char path[PATH_LENGTH];
    snprintf(path, sizeof path, "%s/appended-%ld", directory, number);
    int descriptor = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    double *took = calloc((size_t)count, sizeof *took);
    for (long i = 0; i < count; i++) {
        pthread_barrier_wait(&all);
        double start = now();
        if (write(descriptor, buffer, BLOCK) != BLOCK || fsync(descriptor) != 0)
            die("cannot append to", path);
        pthread_barrier_wait(&all);
        took[i] = (now() - start) * 1e6;
    }
    close(descriptor);
    qsort(took, (size_t)count, sizeof *took, ascending);
    double median = took[count / 2];
    free(took);
    return median;
}

static void *append_beside(void *number)
{
    append_as((long)(intptr_t)number);
    return NULL;
}

/* Median microseconds of appending 4 KiB and fsync, of COUNT; with THREADS, of so many at once to as many files. */
static double append_fsync(void)
{
    pthread_t others[THREADS_MAX];
    pthread_barrier_init(&all, NULL, (unsigned)threads);
    for (long i = 1; i < threads; i++)
        pthread_create(&others[i], NULL, append_beside, (void *)(intptr_t)i);
    double median = append_as(0);
    for (long i = 1; i < threads; i++)
        pthread_join(others[i], NULL);
    return median;
}

/* Entries a second of listing the directory of COUNT small files, names only. */
static double list(void)
{
    char path[PATH_LENGTH];
    snprintf(path, sizeof path, "%s/small-1-0", directory);
    double start = now();
    DIR *listing = opendir(path);
    if (!listing)
        die("cannot open", path);
    long seen = 0;
    while (readdir(listing))
        seen++;
    closedir(listing);
    double took = now() - start;
    if (seen != count + 2 && seen != count) /* some leave out `.` and `..` */
        die("another number of entries than were made in", path);
    return (double)count / took;
}

static const struct {
    const char *name;
    double (*run)(void);
} measurements[] = {
    {"write", sequential_write},     /* MB/s */
    {"read", sequential_read},       /* MB/s */
    {"random-read", random_read},    /* 1/s */
    {"random-write", random_write},  /* 1/s */
    {"create", create_all},          /* 1/s */
    {"stat", stat_all},              /* 1/s */
    {"read-small", read_all},        /* 1/s */
    {"list", list},                  /* entries/s */
    {"rename", rename_all},          /* 1/s */
    {"unlink", unlink_all},          /* 1/s */
    {"append-fsync", append_fsync},  /* us */
};

int main(int arguments, char **argument)
{
    if (arguments < 4) {
        fprintf(stderr, "usage: measure WHAT DIR COUNT [THREADS]\n");
        return 2;
    }
    directory = argument[2];
    count = atol(argument[3]);
    threads = arguments > 4 ? atoi(argument[4]) : 1;
    buffer = malloc(MIB);
    if (count < 1 || threads < 1 || threads > THREADS_MAX || !buffer) {
        fprintf(stderr, "measure: COUNT must be at least 1, THREADS from 1 to %d\n", THREADS_MAX);
        return 2;
    }
    uint64_t state = 2718281828459045235ULL;
    for (size_t i = 0; i < MIB; i += 8) { /* bytes that no layer can compress */
        uint64_t word = dice(&state);
        memcpy(buffer + i, &word, 8);
    }
    for (size_t i = 0; i < sizeof measurements / sizeof *measurements; i++)
        if (strcmp(argument[1], measurements[i].name) == 0) {
            printf("%.3f\n", measurements[i].run());
            return 0;
        }
    fprintf(stderr, "measure: there is no measurement '%s'\n", argument[1]);
    return 2;
}
