/*
 * floor: how fast the kernel asks a FUSE daemon that does nothing.
 *
 *     floor DIR [COUNT]
 *
 * Mounts an empty file system on DIR in which every name exists, stats COUNT (20,000) names that were never asked for before,
 * by one thread and by eight, and prints lookups a second for each way by which requests can travel:
 *
 *     device     one thread sleeps in read() of /dev/fuse
 *     looking    it looks for 20 us before it sleeps, as Dazzle does
 *     ring       FUSE over io_uring, a queue and a thread for each processor; needs Linux 6.14 and
 *                /sys/module/fuse/parameters/enable_uring, which is set for the run and put back
 *
 * No daemon can answer sooner than this one, so the rates are the floor for what asks once: a first stat. Medians of 5.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER = (1 << 20) + 4096, PAYLOAD = 1 << 20, DEPTH = 8, THREADS = 8, ROUNDS = 5 };
enum way { DEVICE, LOOKING, RING };
static const char *const names[] = {"device", "looking", "ring"};
static const char parameter[] = "/sys/module/fuse/parameters/enable_uring";
static const double look_seconds = 20e-6;

/* From Linux 6.14 on in <linux/fuse.h>, which Debian 12 has an older one of. */
#define OVER_IO_URING (1ULL << 41)
enum { REGISTER = 1, COMMIT_AND_FETCH = 2 };
struct ring_header {
    char in_out[128];
    char op_in[128];
    struct {
        uint64_t flags, commit_id;
        uint32_t payload_bytes, padding;
        uint64_t reserved;
    } entry;
};
struct ring_command {
    uint64_t flags, commit_id;
    uint16_t queue;
    uint8_t padding[6];
};

static int device;
static enum way way;
static const char *directory;
static long count = 20000;

static void die(const char *what)
{
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

static void describe(struct fuse_attr *attributes, uint64_t inode)
{
    memset(attributes, 0, sizeof *attributes);
    attributes->ino = inode;
    attributes->mode = inode == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0644;
    attributes->nlink = 1;
}

/* Answers into `out`, which may be where `name` lies. Returns how many bytes, or an error number below zero. */
static int answer(const struct fuse_in_header *header, const char *name, void *out)
{
    if (header->opcode == FUSE_LOOKUP) {
        uint64_t inode = 2 + strtoull(name, NULL, 10);
        struct fuse_entry_out *entry = memset(out, 0, sizeof *entry);
        entry->nodeid = inode;
        entry->entry_valid = entry->attr_valid = 1000;
        describe(&entry->attr, inode);
        return sizeof *entry;
    }
    if (header->opcode == FUSE_GETATTR) {
        struct fuse_attr_out *about = memset(out, 0, sizeof *about);
        about->attr_valid = 1000;
        describe(&about->attr, header->nodeid);
        return sizeof *about;
    }
    return -ENOSYS;
}

static ssize_t next_request(void *buffer)
{
    double begun = now();
    for (;;) {
        ssize_t count = read(device, buffer, BUFFER);
        if (count >= 0 || errno != EAGAIN)
            return count;
        if (way != LOOKING || now() - begun > look_seconds)
            poll(&(struct pollfd){.fd = device, .events = POLLIN}, 1, -1);
    }
}

/* Serves by read and write until the file system is unmounted. */
static void *serve_device(void *unused)
{
    (void)unused;
    char *request = aligned_alloc(4096, BUFFER), *reply = aligned_alloc(4096, BUFFER);
    for (;;) {
        if (next_request(request) < 0) {
            if (errno == EINTR || errno == ENOENT)
                continue;
            return NULL;
        }
        const struct fuse_in_header *header = (void *)request;
        if (header->opcode == FUSE_FORGET || header->opcode == FUSE_BATCH_FORGET || header->opcode == FUSE_INTERRUPT)
            continue;
        int bytes = answer(header, request + sizeof *header, reply);
        struct fuse_out_header out = {.unique = header->unique, .error = bytes < 0 ? bytes : 0};
        out.len = (uint32_t)(sizeof out + (size_t)(bytes > 0 ? bytes : 0));
        struct iovec parts[2] = {{&out, sizeof out}, {reply, out.len - sizeof out}};
        if (writev(device, parts, 2) < 0 && errno != ENOENT)
            return NULL;
    }
}

struct entry {
    struct ring_header *header;
    char *payload;
    struct iovec parts[2];
};

static void submit(struct io_uring *ring, struct entry *entry, uint32_t command, int queue)
{
    struct io_uring_sqe *place = io_uring_get_sqe(ring);
    if (place == NULL)
        die("the ring has no room");
    memset(place, 0, 2 * sizeof *place);
    place->opcode = IORING_OP_URING_CMD;
    place->fd = device;
    place->addr = (uintptr_t)entry->parts;
    place->len = 2;
    place->off = command;
    place->user_data = (uintptr_t)entry;
    struct ring_command *words = (void *)((char *)place + offsetof(struct io_uring_sqe, addr3));
    words->commit_id = entry->header->entry.commit_id;
    words->queue = (uint16_t)queue;
}

/* Serves one processor's queue until the file system is unmounted. */
static void *serve_ring(void *number)
{
    int queue = (int)(intptr_t)number;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(queue, &own);
    sched_setaffinity(0, sizeof own, &own);
    struct io_uring ring;
    struct io_uring_params parameters = {0};
    parameters.flags = IORING_SETUP_SQE128 | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN;
    if (io_uring_queue_init_params(2 * DEPTH, &ring, &parameters) != 0)
        die("no ring");
    for (int number = 0; number < DEPTH; number++) {
        struct entry *entry = calloc(1, sizeof *entry);
        entry->header = memset(aligned_alloc(4096, 4096), 0, 4096);
        entry->payload = aligned_alloc(4096, PAYLOAD);
        entry->parts[0] = (struct iovec){entry->header, sizeof *entry->header};
        entry->parts[1] = (struct iovec){entry->payload, PAYLOAD};
        submit(&ring, entry, REGISTER, queue);
    }
    for (;;) {
        struct io_uring_cqe *done;
        io_uring_submit_and_wait(&ring, 1);
        while (io_uring_peek_cqe(&ring, &done) == 0) {
            struct entry *entry = (void *)(uintptr_t)done->user_data;
            if (done->res != 0)
                return NULL;
            io_uring_cqe_seen(&ring, done);
            struct fuse_in_header *header = (void *)entry->header->in_out;
            uint64_t unique = header->unique;
            int bytes = answer(header, entry->payload, entry->payload);
            struct fuse_out_header *out = (void *)entry->header->in_out;
            *out = (struct fuse_out_header){.unique = unique, .error = bytes < 0 ? bytes : 0};
            entry->header->entry.payload_bytes = (uint32_t)(bytes > 0 ? bytes : 0);
            out->len = (uint32_t)sizeof *out + entry->header->entry.payload_bytes;
            submit(&ring, entry, COMMIT_AND_FETCH, queue);
        }
    }
}

static void mount_and_greet(void)
{
    device = open("/dev/fuse", O_RDWR);
    char options[128];
    snprintf(options, sizeof options, "fd=%d,rootmode=40755,user_id=0,group_id=0", device);
    if (device < 0 || mount("floor", directory, "fuse.floor", MS_NOSUID | MS_NODEV, options) != 0)
        die("cannot mount");
    char *request = aligned_alloc(4096, BUFFER);
    if (read(device, request, BUFFER) < 0)
        die("no handshake");
    struct { struct fuse_out_header header; struct fuse_init_out init; } reply = {0};
    reply.header.len = sizeof reply;
    reply.header.unique = ((struct fuse_in_header *)(void *)request)->unique;
    reply.init.major = FUSE_KERNEL_VERSION;
    reply.init.minor = FUSE_KERNEL_MINOR_VERSION;
    reply.init.max_write = PAYLOAD;
    reply.init.flags = FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES | FUSE_INIT_EXT;
    reply.init.flags2 = way == RING ? OVER_IO_URING >> 32 : 0;
    reply.init.max_pages = PAYLOAD / 4096;
    if (write(device, &reply, sizeof reply) != sizeof reply)
        die("the handshake was refused");
    free(request);
}

static void serve(void)
{
    mount_and_greet();
    if (way == LOOKING)
        fcntl(device, F_SETFL, O_RDWR | O_NONBLOCK);
    pthread_t thread;
    for (int queue = 0; way == RING && queue < get_nprocs_conf(); queue++)
        pthread_create(&thread, NULL, serve_ring, (void *)(intptr_t)queue);
    pthread_create(&thread, NULL, serve_device, NULL);
    pthread_join(thread, NULL);
}

static void *stat_fresh(void *first)
{
    char path[4096];
    struct stat about;
    for (long name = (long)(intptr_t)first, end = name + count; name < end; name++) {
        snprintf(path, sizeof path, "%s/%ld", directory, name);
        if (lstat(path, &about) != 0)
            die(path);
    }
    return NULL;
}

static int by_value(const void *one, const void *other)
{
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

static double rate(int threads, long *first)
{
    double rates[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t asking[THREADS];
        double begun = now();
        for (int thread = 0; thread < threads; thread++, *first += count)
            pthread_create(&asking[thread], NULL, stat_fresh, (void *)(intptr_t)*first);
        for (int thread = 0; thread < threads; thread++)
            pthread_join(asking[thread], NULL);
        rates[round] = (double)(count * threads) / (now() - begun);
    }
    qsort(rates, ROUNDS, sizeof *rates, by_value);
    return rates[ROUNDS / 2];
}

/* Turns FUSE over io_uring on or off for mounts to come; returns what was set before, or 0 where there is no such thing. */
static char allow_ring(char allowed)
{
    char before = 0;
    int file = open(parameter, O_RDWR);
    if (file < 0 || pread(file, &before, 1, 0) != 1 || pwrite(file, &allowed, 1, 0) != 1)
        before = 0;
    if (file >= 0)
        close(file);
    return before;
}

int main(int argc, char **argv)
{
    if (argc < 2 || (argc > 2 && (count = atol(argv[2])) < 1)) {
        fprintf(stderr, "floor DIR [COUNT]: DIR is a directory to mount on\n");
        return 2;
    }
    directory = argv[1];
    for (way = DEVICE; way <= RING; way++) {
        char before = way == RING ? allow_ring('Y') : 'N';
        if (before == 0) {
            printf("%-8s not with this kernel\n", names[way]);
            continue;
        }
        pid_t daemon = fork();
        if (daemon == 0) {
            serve();
            _exit(0);
        }
        char probe[4096];
        struct stat about;
        snprintf(probe, sizeof probe, "%s/0", directory);
        while (lstat(probe, &about) != 0 && waitpid(daemon, NULL, WNOHANG) == 0)
            sched_yield();
        long first = 1;
        double one = rate(1, &first), many = rate(THREADS, &first);
        printf("%-8s %8.0f lookups/s by one thread, %8.0f by %d\n", names[way], one, many, THREADS);
        fflush(stdout);
        umount(directory);
        waitpid(daemon, NULL, 0);
        if (way == RING)
            allow_ring(before);
    }
    return 0;
}
