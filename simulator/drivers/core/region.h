/* The shared state of one fake node: every process that loads a fake driver with the same
 * GPUSLICE_FAKE_STATE maps this file and sees the same cards, memory, timeline and faults.
 *
 * Locking: `lock` guards everything but the atomics. Its holder is a client slot, not a thread id,
 * so that processes of different pid namespaces agree; a waiter that finds the holder dead takes
 * the lock over and calls region_repair(). A slot's life is an OFD lock on one byte of the file,
 * which the kernel drops when the process dies. After fork() the child has no slot until it
 * attaches.
 */
#ifndef GPUSLICE_FAKE_REGION_H
#define GPUSLICE_FAKE_REGION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "inventory.h"

enum {
	MAX_CLIENTS = 1024,
	DOMAINS_PER_CARD = 1 + MAX_INSTANCES, /* the card itself, then its GPU instances */
	MAX_DOMAINS = MAX_CARDS * DOMAINS_PER_CARD,
	MAX_HOLDINGS = MAX_CARDS,
	MAX_SHARED = 2048,
	MAX_EVENTS = 256,
	MAX_FAULTS = 64,
	SAMPLES = 16,
	SEGMENTS = 1024,
	BUSY_STEPS = 2048,
	BUSY_STEP_NS = 10000000,
	MAX_PARTICIPANTS = 256,
};

enum memory_kind {
	KIND_CONTEXT,
	KIND_DATA,
	KIND_POOL,
	KIND_GRAPH,
	KIND_VMM,
	KIND_ARRAY,
	KIND_MANAGED,
	KIND_MODULE,
	KIND_COUNT,
};

/* Work of one process on one domain, in nanoseconds of the device's own time. */
struct work_queue {
	uint64_t submitted_ns; /* all work ever queued */
	uint64_t served_ns; /* all work ever done; an event at position p is complete when served_ns
			       >= p */
	uint64_t sample_busy_ns;
	struct {
		uint64_t end_us;
		uint32_t percent;
	} samples[SAMPLES]; /* samples in which the process was busy, newest at sample_next - 1 */
	uint32_t sample_next;
	uint64_t launches;
};

struct holding {
	bool used;
	uint32_t domain;
	uint64_t bytes[KIND_COUNT]; /* physical */
	uint64_t requested; /* what the program asked for, all kinds but contexts and modules */
	struct work_queue work;
};

enum client_kind { CLIENT_NONE, CLIENT_CUDA, CLIENT_NVML };

struct client {
	int32_t pid; /* in its own namespace */
	uint64_t start_ticks;
	uint64_t pid_namespace;
	uint32_t holding_count;
	struct holding holdings[MAX_HOLDINGS];
};

/* A run of the device for one process; rate is 1/share of the device. */
struct segment {
	uint64_t start_ns, end_ns;
	uint64_t served_from; /* position in the client's work at start_ns */
	uint32_t client;
	uint32_t share;
};

/* A process with work, or with work in the sample that is being taken. */
struct member {
	uint16_t client, holding;
};

struct domain {
	uint64_t used_bytes;
	uint64_t peak_bytes;
	uint64_t refused; /* allocations that did not fit */
	uint64_t advanced_ns;
	uint32_t member_count;
	uint32_t turn; /* index of the member whose time slice runs */
	uint64_t turn_left_ns;
	struct member members[MAX_CLIENTS];
	uint64_t sample_start_ns, sample_busy_ns;
	uint32_t sample_percent[SAMPLES];
	uint64_t sample_end_us[SAMPLES];
	uint32_t sample_next;
	uint64_t busy_ns;                /* all time the device was busy */
	uint32_t busy_steps[BUSY_STEPS]; /* of it in each BUSY_STEP_NS since busy_from_ns */
	uint64_t busy_from_ns;           /* 0: never busy */
	uint32_t segment_next;
	struct segment segments[SEGMENTS];
};

/* Memory that several processes may hold: exported VMM handles, pools and IPC memory. */
struct shared_memory {
	bool used;
	uint32_t domain;
	uint32_t creator;
	uint64_t bytes;
	uint64_t generation;
	uint64_t holders[MAX_CLIENTS / 64];
};

struct card_health {
	_Atomic uint32_t lost;
	uint32_t recovery;
	uint64_t ecc_single, ecc_double;
	uint32_t remapped_correctable, remapped_uncorrectable, remap_pending, remap_failed;
	uint32_t retired_pages;
	uint64_t last_xid;
};

struct nvml_event {
	uint64_t sequence;
	uint32_t card;
	uint64_t type, data;
	uint32_t gpu_instance, compute_instance;
};

enum fault_kind { FAULT_NONE, FAULT_FAIL, FAULT_SLOW, FAULT_KILL, FAULT_KILL_AFTER };

struct fault {
	uint32_t kind;
	char symbol[72]; /* exact name, or a prefix that ends in '*' */
	int32_t card;    /* -1: any; NVML calls on one card only */
	int32_t code;    /* result of FAULT_FAIL */
	uint64_t slow_us;
	int64_t skip;  /* calls to let pass first */
	int64_t times; /* calls to hit; negative: for ever */
};

/* A thread that takes part in the virtual clock (clock.h). */
struct participant {
	uint32_t state; /* enum participant_state */
	uint32_t client;
	uint32_t rank;
	uint64_t due_ns;
};

enum participant_state { PARTICIPANT_NONE, PARTICIPANT_RUNNING, PARTICIPANT_WAITING };

struct region_lock {
	_Atomic uint32_t owner; /* slot + 1, 0 when free; top bit: somebody waits */
};

enum clock_mode { CLOCK_REAL, CLOCK_VIRTUAL };

struct region {
	uint64_t magic;
	uint64_t size;
	uint64_t inventory_hash;
	uint64_t boot_hash;
	_Atomic uint32_t ready;
	_Atomic uint32_t armed; /* anything in faults[], or the driver is unloaded */
	struct region_lock lock;
	uint32_t repairs; /* times a dead holder's lock was taken over */
	enum clock_mode clock;
	_Atomic uint64_t virtual_ns;
	uint32_t participants_expected;
	_Atomic uint32_t turns; /* futex: changes whenever a participant may go on */
	struct participant participants[MAX_PARTICIPANTS];
	_Atomic uint32_t driver_state; /* NVML code that every call answers; 0: loaded */
	_Atomic uint32_t mig_generation;
	_Atomic uint64_t control_stamp; /* coarse time of the last look at the control file */
	uint64_t control_offset, control_inode, control_lines;
	_Atomic uint32_t event_next; /* futex: events ever posted */
	struct nvml_event events[MAX_EVENTS];
	struct fault faults[MAX_FAULTS];
	struct card_health health[MAX_CARDS];
	struct inventory inventory;
	struct domain domains[MAX_DOMAINS];
	struct shared_memory shared[MAX_SHARED];
	uint64_t shared_generation;
	_Atomic uint32_t kinds[MAX_CLIENTS]; /* enum client_kind of each slot; apart, because all
						are scanned often */
	struct client clients[MAX_CLIENTS];
};

/* Attach this library to the node's region, creating it if needed. Safe to call again.
 * Returns false and keeps a one-line reason (region_problem) when there is no usable inventory. */
bool region_attach(enum client_kind kind);
struct region *region(void); /* NULL before region_attach */
struct client *region_self(void);
uint32_t region_slot(void);
const char *region_problem(void);
const char *region_directory(void);

void region_lock(void);
void region_unlock(void);
/* Recompute every sum from the clients that live; call with the lock held. */
void region_repair(void);
/* Free what dead clients held; call with the lock held. */
void region_reap(void);
bool client_alive(uint32_t slot);
/* A client's pid as this process's namespace names it; 0 when it is not visible from here. */
pid_t client_visible_pid(uint32_t slot);

#endif
