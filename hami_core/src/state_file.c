/* Fork: the child drops the parent's file description, which holds the parent's slot, and opens its
 * own. */
#include "state_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "faults.h"
#include "log.h"

#define LOW_FD 700 /* keep clear of the small numbers that applications expect to get */

static struct state_file *mapped;
static char file_path[256];
static int file_fd = -1;
static ino_t file_inode;

struct state_file *
state_file(void)
{
	return mapped;
}

static ino_t
inode_of(int fd)
{
	struct stat status;
	return syscall(SYS_fstat, fd, &status) == 0 ? status.st_ino : 0;
}

static int
open_file(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT) {
		fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
		if (fd >= 0) {
			/* Other users of the container share it; the process's umask is not ours to
			 * change. */
			(void)fchmod(fd, 0666);
		}
	}
	int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, LOW_FD);
	if (high >= 0) {
		close(fd);
		fd = high;
	}
	return fd;
}

/* Take the disk space now: a page that cannot be had later would be a SIGBUS in the program. False:
 * the disk is full. A file system that cannot do this is taken as it is. */
static bool
allocate_space(int fd, off_t from, size_t bytes)
{
	return syscall(SYS_fallocate, fd, 0, from, (off_t)bytes) == 0 ||
	       (errno != ENOSPC && errno != EDQUOT);
}

void
state_file_initialise(struct state_file *file)
{
	file->header.version = STATE_VERSION;
	file->header.size_bytes = sizeof *file;
	FAULT_POINT("init");
	__atomic_store_n(&file->header.magic, STATE_MAGIC, __ATOMIC_RELEASE);
}

/* Versions are small numbers: anything else was not written by any gpuslice. */
#define MAX_PLAUSIBLE_VERSION 1000

static bool
header_is_damaged(const struct state_header *header)
{
	return header->magic != STATE_MAGIC || header->version == 0 ||
	       header->version > MAX_PLAUSIBLE_VERSION ||
	       (header->version == STATE_VERSION &&
		header->size_bytes != sizeof(struct state_file));
}

static bool
map_file(int fd, bool ours)
{
	off_t size = lseek(fd, 0, SEEK_END);
	if ((size < (off_t)sizeof(struct state_file) &&
	     ftruncate(fd, sizeof(struct state_file)) != 0) ||
	    !allocate_space(fd, 0, offsetof(struct state_file, slots))) {
		return false;
	}
	void *map =
	    mmap(NULL, sizeof(struct state_file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED) {
		return false;
	}
	struct state_file *file = map;
	if (__atomic_load_n(&file->header.magic, __ATOMIC_ACQUIRE) == 0 ||
	    (ours && header_is_damaged(&file->header))) {
		state_file_initialise(file);
	}
	if (file->header.magic != STATE_MAGIC || file->header.version != STATE_VERSION ||
	    file->header.size_bytes != sizeof *file) {
		munmap(map, sizeof *file);
		errno = EPROTO;
		return false;
	}
	mapped = file;
	return true;
}

/* A lock on some bytes that the kernel drops when this process's file description is closed. */
static bool
byte_lock(int fd, int command, short type, off_t at, off_t count, short *found)
{
	struct flock request = {
	    .l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = count};
	int result;
	do {
		result = fcntl(fd, command, &request);
	} while (result != 0 && errno == EINTR);
	if (found != NULL) {
		*found = request.l_type;
	}
	return result == 0;
}

bool
state_open(const char *path, bool ours)
{
	int fd = open_file(path);
	bool good =
	    fd >= 0 && byte_lock(fd, F_OFD_SETLKW, F_WRLCK, 0, 1, NULL) && map_file(fd, ours);
	if (!good) {
		log_line(LOG_ERROR,
			 "%s: %s: every allocation is denied; the directory must be writable for "
			 "this user",
			 path,
			 errno == EPROTO ? "written by another version of gpuslice"
					 : strerror(errno));
	}
	if (fd >= 0) {
		byte_lock(fd, F_OFD_SETLK, F_UNLCK, 0, 1, NULL);
	}
	if (!good) {
		if (fd >= 0) {
			close(fd);
		}
		return false;
	}
	snprintf(file_path, sizeof file_path, "%s", path);
	file_fd = fd;
	file_inode = inode_of(fd);
	return true;
}

/* Programs close files that are not theirs: a number that stands for another file now is not used.
 */
static int
own_fd(void)
{
	return file_fd >= 0 && inode_of(file_fd) == file_inode ? file_fd : -1;
}

bool
state_file_reserve(off_t at, size_t bytes)
{
	int fd = own_fd();
	return fd < 0 || allocate_space(fd, at, bytes);
}

bool
state_file_hold(off_t at)
{
	int fd = own_fd();
	return fd < 0 || byte_lock(fd, F_OFD_SETLK, F_WRLCK, at, 1, NULL) ||
	       (errno != EAGAIN && errno != EACCES);
}

enum held
state_file_is_held(off_t at, size_t bytes)
{
	short found = F_UNLCK;
	int fd = own_fd();
	if (fd < 0 || !byte_lock(fd, F_OFD_GETLK, F_WRLCK, at, (off_t)bytes, &found)) {
		return HELD_UNKNOWN;
	}
	return found == F_UNLCK ? HELD_BY_NOBODY : HELD_BY_OTHERS;
}

void
state_file_postfork_child(void)
{
	if (mapped == NULL) {
		return;
	}
	int inherited = own_fd();
	if (inherited >= 0) {
		close(inherited);
	}
	file_fd = open_file(file_path);
}
