#include "clock.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "region.h"

enum { THREADS_PER_RANK = 64 };

static __thread int own = -1;
static __thread uint32_t own_slot;
static _Atomic uint32_t joined_here;
static pthread_key_t leave_key;

uint64_t
clock_now(void)
{
	if (region()->clock == CLOCK_VIRTUAL) {
		return atomic_load_explicit(&region()->virtual_ns, memory_order_acquire);
	}
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

static void
wake_all(void)
{
	atomic_fetch_add(&region()->turns, 1);
	syscall(SYS_futex, &region()->turns, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* If nobody runs, let the next one run. Lock held. */
static void
pass_turn(void)
{
	struct region *r = region();
	struct participant *next = NULL;
	uint32_t joined = 0;
	for (unsigned i = 0; i < MAX_PARTICIPANTS; i++) {
		struct participant *p = &r->participants[i];
		if (p->state == PARTICIPANT_RUNNING) {
			return;
		}
		if (p->state == PARTICIPANT_NONE) {
			continue;
		}
		joined++;
		bool earlier = next == NULL || p->due_ns < next->due_ns ||
			       (p->due_ns == next->due_ns && p->rank < next->rank);
		next = earlier ? p : next;
	}
	if (next == NULL || joined < r->participants_expected) {
		return;
	}
	r->participants_expected = 0; /* only the start waits for all */
	next->state = PARTICIPANT_RUNNING;
	if (next->due_ns > atomic_load(&r->virtual_ns)) {
		atomic_store_explicit(&r->virtual_ns, next->due_ns, memory_order_release);
	}
	wake_all();
}

void
clock_leave(void)
{
	if (own >= 0 && region() != NULL && own_slot == region_slot()) {
		region_lock();
		region()->participants[own].state = PARTICIPANT_NONE;
		pass_turn();
		region_unlock();
	}
	own = -1;
}

static void
leave_at_thread_end(void *unused)
{
	(void)unused;
	clock_leave();
}

static void
create_key(void)
{
	pthread_key_create(&leave_key, leave_at_thread_end);
}

/* Lock held. */
static void
join(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const char *rank = getenv("GPUSLICE_FAKE_RANK");
	pthread_once(&once, create_key);
	for (int i = 0; i < MAX_PARTICIPANTS; i++) {
		struct participant *p = &region()->participants[i];
		if (p->state == PARTICIPANT_NONE) {
			p->client = region_slot();
			p->rank = (rank != NULL ? (uint32_t)strtoul(rank, NULL, 10) : 0) *
				      THREADS_PER_RANK +
				  atomic_fetch_add(&joined_here, 1);
			own = i;
			own_slot = region_slot();
			pthread_setspecific(leave_key, &own_slot);
			return;
		}
	}
	abort(); /* more threads than a test may have */
}

static void
wait_virtual(uint64_t moment_ns)
{
	const struct timespec patience = {.tv_nsec = 20 * 1000 * 1000};
	region_lock();
	if (own < 0 || own_slot != region_slot()) {
		join();
	}
	struct participant *mine = &region()->participants[own];
	mine->due_ns = moment_ns;
	mine->state = PARTICIPANT_WAITING;
	pass_turn();
	while (mine->state != PARTICIPANT_RUNNING) {
		uint32_t turn = atomic_load(&region()->turns);
		region_unlock();
		long woke =
		    syscall(SYS_futex, &region()->turns, FUTEX_WAIT, turn, &patience, NULL, 0);
		bool late = woke != 0 && errno == ETIMEDOUT;
		region_lock();
		if (late) {
			region_reap(); /* the one that runs may be dead */
			pass_turn();
		}
	}
	region_unlock();
}

void
clock_wait_until(uint64_t moment_ns)
{
	if (region()->clock == CLOCK_VIRTUAL) {
		wait_virtual(moment_ns);
		return;
	}
	struct timespec until = {.tv_sec = (time_t)(moment_ns / 1000000000ULL),
				 .tv_nsec = (long)(moment_ns % 1000000000ULL)};
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {
	}
}

void
clock_poll(void)
{
	if (region()->clock == CLOCK_VIRTUAL) {
		clock_wait_until(clock_now() + 1000);
	}
}
