/*
 * exercise: random operations on one file through three doors at once, checked against a model in memory.
 *
 *     exercise FILE OPERATIONS SEED
 *
 * fsx exercises a file through one descriptor. Here the same bytes are written and read through a buffered descriptor,
 * an O_DIRECT one and a shared mapping, between truncates, holes and zeroed ranges: what one door wrote the
 * others must see at once. Every byte read is compared; a difference prints the last operations and ends with 1.
 *
 * The danger: a cache that the direct path forgets to invalidate, or flushes over newer bytes; a page beyond the end
 * of the file that shows old bytes when the file grows again.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MAX = 1 << 20, OPERATION_MAX = 96 << 10, BLOCK = 4096, TOLD = 24, LINE = 160 };

static unsigned char model[FILE_MAX]; /* what the file must hold; zero beyond `size` */
static size_t size;                   /* how long it must be */
static unsigned char *aligned;        /* a buffer that O_DIRECT accepts */
static int buffered, direct;
static const char *path;
static char told[TOLD][LINE]; /* the last operations, for whoever has to find out */
static unsigned long number;
static uint64_t state;

static uint64_t dice(uint64_t sides)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return sides ? (state * 0x2545F4914F6CDD1DULL >> 11) % sides : 0;
}

static void tell(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int used = snprintf(told[number % TOLD], LINE, "%lu: ", number);
    vsnprintf(told[number % TOLD] + used, LINE - used, format, values);
    va_end(values);
}

static void give_up(const char *what, size_t offset)
{
    fprintf(stderr, "exercise: %s at offset %zu (file of %zu): %s\n", what, offset, size, strerror(errno));
    for (unsigned long i = number >= TOLD ? number - TOLD + 1 : 0; i <= number; i++)
        fprintf(stderr, "  %s\n", told[i % TOLD]);
    exit(1);
}

static void compare(const unsigned char *bytes, size_t offset, size_t length, const char *door)
{
    if (memcmp(bytes, model + offset, length) == 0)
        return;
    size_t i = 0;
    while (bytes[i] == model[offset + i])
        i++;
    fprintf(stderr, "%s: got %02x, not %02x\n", door, bytes[i], model[offset + i]);
    errno = 0;
    give_up("wrong byte", offset + i);
}

/* The model takes `length` new bytes at `offset`, and `aligned` holds the same. */
static void fill(size_t offset, size_t length)
{
    unsigned char byte = (unsigned char)(number * 37 + 1);
    for (size_t i = 0; i < length; i++)
        aligned[i] = (unsigned char)(byte + i / 7);
    memcpy(model + offset, aligned, length);
    if (offset + length > size)
        size = offset + length;
}

static void write_through(int descriptor, size_t offset, size_t length)
{
    fill(offset, length);
    for (size_t done = 0; done < length;) {
        ssize_t wrote = pwrite(descriptor, aligned + done, length - done, (off_t)(offset + done));
        if (wrote <= 0)
            give_up("pwrite", offset + done);
        done += (size_t)wrote;
    }
}

static void read_through(int descriptor, size_t offset, size_t length, const char *door)
{
    ssize_t got = pread(descriptor, aligned, length, (off_t)offset);
    size_t expected = offset >= size ? 0 : size - offset < length ? size - offset : length;
    if (got < 0 || (size_t)got != expected)
        give_up("pread is short or long", offset);
    compare(aligned, offset, expected, door);
}

static void map_read(size_t offset, size_t length)
{
    size_t start = offset / BLOCK * BLOCK, span = offset - start + length;
    unsigned char *map = mmap(NULL, span, PROT_READ, MAP_SHARED, buffered, (off_t)start);
    if (map == MAP_FAILED)
        give_up("mmap to read", offset);
    compare(map + (offset - start), offset, length, "map");
    size_t page_end = (offset + length + BLOCK - 1) / BLOCK * BLOCK; /* beyond the end a page holds zeros */
    if (offset + length == size)
        compare(map + (size - start), size, page_end - size, "map beyond the end");
    munmap(map, span);
}

static void map_write(size_t offset, size_t length)
{
    size_t start = offset / BLOCK * BLOCK, span = offset - start + length;
    unsigned char *map = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_SHARED, buffered, (off_t)start);
    if (map == MAP_FAILED)
        give_up("mmap to write", offset);
    fill(offset, length);
    memcpy(map + (offset - start), aligned, length);
    if (dice(2) && msync(map, span, MS_SYNC) != 0)
        give_up("msync", offset);
    munmap(map, span);
}

static void change_size(size_t to)
{
    if (ftruncate(buffered, (off_t)to) != 0)
        give_up("ftruncate", to);
    if (to < size)
        memset(model + to, 0, size - to);
    size = to;
}

static void allocate(int mode, size_t offset, size_t length)
{
    if (fallocate(buffered, mode, (off_t)offset, (off_t)length) != 0)
        give_up("fallocate", offset);
    if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
        memset(model + offset, 0, length);
    if (!(mode & FALLOC_FL_KEEP_SIZE) && offset + length > size)
        size = offset + length;
}

static void reopen(void)
{
    if (buffered >= 0)
        close(buffered);
    if (direct >= 0)
        close(direct);
    buffered = open(path, O_RDWR | O_CREAT, 0644);
    direct = open(path, O_RDWR | O_DIRECT);
    if (buffered < 0 || direct < 0)
        give_up("open", 0);
}

static void check_size(void)
{
    struct stat about;
    if (fstat(buffered, &about) != 0 || (size_t)about.st_size != size)
        give_up("st_size is wrong", (size_t)about.st_size);
}

static void step(void)
{
    size_t offset = dice(FILE_MAX), length = 1 + dice(OPERATION_MAX);
    if (offset + length > FILE_MAX)
        length = FILE_MAX - offset;
    size_t block = offset / BLOCK * BLOCK, blocks = (length + BLOCK - 1) / BLOCK * BLOCK;
    size_t inside = size ? dice(size) : 0, reach = size - inside < length ? size - inside : length;
    uint64_t deed = dice(100);

    if (deed < 14) {
        tell("write %zu+%zu", offset, length);
        write_through(buffered, offset, length);
    } else if (deed < 28) {
        tell("direct write %zu+%zu", block, blocks);
        write_through(direct, block, blocks);
    } else if (deed < 40) {
        tell("read %zu+%zu", offset, length);
        read_through(buffered, offset, length, "buffered");
    } else if (deed < 56) {
        tell("direct read %zu+%zu", block, blocks);
        read_through(direct, block, blocks, "direct");
    } else if (deed < 66) {
        tell("map read %zu+%zu", inside, reach);
        if (reach)
            map_read(inside, reach);
    } else if (deed < 76) {
        tell("map write %zu+%zu", inside, reach);
        if (reach)
            map_write(inside, reach);
    } else if (deed < 82) {
        tell("truncate %zu", offset);
        change_size(offset);
    } else if (deed < 87) {
        tell("punch %zu+%zu", offset, length);
        allocate(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length);
    } else if (deed < 90) {
        tell("zero, keeping size %zu+%zu", inside, reach);
        if (reach)
            allocate(FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, inside, reach);
    } else if (deed < 92) {
        tell("zero %zu+%zu", offset, length);
        allocate(FALLOC_FL_ZERO_RANGE, offset, length);
    } else if (deed < 94) {
        tell("allocate %zu+%zu", offset, length);
        allocate(0, offset, length);
    } else if (deed < 96) {
        tell("fsync");
        if (fsync(deed & 1 ? buffered : direct) != 0)
            give_up("fsync", 0);
    } else if (deed < 98) {
        tell("forget the cache");
        posix_fadvise(buffered, 0, 0, POSIX_FADV_DONTNEED);
    } else {
        tell("close and open");
        reopen();
    }
    check_size();
}

int main(int count, char **arguments)
{
    if (count != 4) {
        fprintf(stderr, "usage: exercise FILE OPERATIONS SEED\n");
        return 2;
    }
    path = arguments[1];
    unsigned long operations = strtoul(arguments[2], NULL, 10);
    state = strtoull(arguments[3], NULL, 10) * 0x9E3779B97F4A7C15ULL + 1;
    if (posix_memalign((void **)&aligned, BLOCK, FILE_MAX + BLOCK) != 0)
        return 2;
    buffered = direct = -1;
    unlink(path);
    reopen();
    for (number = 0; number < operations; number++)
        step();
    reopen();
    read_through(buffered, 0, FILE_MAX, "at the end");
    return 0;
}
