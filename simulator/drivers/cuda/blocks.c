#include "blocks.h"

#include <string.h>
#include <sys/mman.h>

static const uint64_t UNIT = 1ULL << 30;
static const uint64_t CHUNK = 2ULL << 20;
static const uint64_t SMALLEST = 512;
static const uint64_t SMALL_MOST = 1ULL << 20;

enum { MAX_UNITS = 16384, CLASSES = 64, CHUNKS_PER_UNIT = 512 };

struct unit {
	uint64_t stride; /* bytes a block takes; 0: unit unused */
	uint32_t fresh;  /* blocks never handed out start here */
	uint32_t capacity;
	uint32_t span; /* units of a block larger than one; 0 in the units behind the first */
	uint32_t back; /* distance to the first unit of such a block */
	struct block *blocks;
	uint16_t live[CHUNKS_PER_UNIT];
};

struct size_class {
	struct block *free;
	uint32_t unit; /* unit with fresh blocks, UINT32_MAX: none */
	bool started;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct unit *units;
static uint64_t arena;
static uint32_t unit_count;
static uint32_t units_used; /* all units from here on are unused */
static struct size_class classes[MAX_CARDS * BLOCK_USES][CLASSES];

void
blocks_lock(void)
{
	pthread_mutex_lock(&mutex);
}

void
blocks_unlock(void)
{
	pthread_mutex_unlock(&mutex);
}

static bool
arena_open(void)
{
	if (units != NULL) {
		return true;
	}
	for (uint32_t count = MAX_UNITS; count >= 16 && arena == 0; count /= 2) {
		void *at = mmap(NULL, (count + 1) * UNIT, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (at != MAP_FAILED) {
			arena = ((uint64_t)(uintptr_t)at + UNIT - 1) / UNIT * UNIT;
			unit_count = count;
			madvise(at, (count + 1) * UNIT, MADV_DONTDUMP);
		}
	}
	void *table = mmap(NULL, sizeof(struct unit) * MAX_UNITS, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (arena == 0 || table == MAP_FAILED) {
		return false;
	}
	units = table;
	return true;
}

/* Small classes: four to each doubling, in steps of 512 bytes; larger ones: powers of two. */
static uint64_t
stride_of(uint64_t bytes)
{
	if (bytes > SMALL_MOST) {
		return bytes > UNIT ? (bytes + UNIT - 1) / UNIT * UNIT
				    : 1ULL << (64 - __builtin_clzll(bytes - 1));
	}
	uint64_t steps = (bytes + SMALLEST - 1) / SMALLEST;
	if (steps <= 4) {
		return (steps == 0 ? 1 : steps) * SMALLEST;
	}
	uint64_t round = 1ULL << (61 - __builtin_clzll(steps - 1));
	return (steps + round - 1) / round * round * SMALLEST;
}

static unsigned
class_of(uint64_t stride)
{
	uint64_t steps = stride / SMALLEST;
	unsigned top = 63U - (unsigned)__builtin_clzll(steps);
	if (stride > SMALL_MOST) {
		return 40 + top - 11;
	}
	return top < 2 ? (unsigned)steps - 1 : (top - 1) * 4 + (unsigned)(steps >> (top - 2)) - 5;
}

static uint64_t
unit_address(uint32_t unit)
{
	return arena + unit * UNIT;
}

/* First of `span` unused units in a row, or UINT32_MAX. */
static uint32_t
find_units(uint32_t span)
{
	uint32_t run = 0;
	for (uint32_t u = 0; u < units_used; u++) {
		run = units[u].stride == 0 ? run + 1 : 0;
		if (run == span) {
			return u + 1 - span;
		}
	}
	uint32_t first = units_used - run;
	return first + span <= unit_count ? first : UINT32_MAX;
}

static uint32_t
unit_open(uint64_t stride)
{
	uint32_t span = stride > UNIT ? (uint32_t)(stride / UNIT) : 1;
	uint32_t first = find_units(span);
	if (first == UINT32_MAX) {
		return UINT32_MAX;
	}
	struct unit *unit = &units[first];
	uint64_t per_chunk = stride <= SMALL_MOST ? CHUNK / stride : 0;
	uint64_t capacity = stride <= SMALL_MOST ? per_chunk * CHUNKS_PER_UNIT
						 : (stride > UNIT ? 1 : UNIT / stride);
	void *blocks = mmap(NULL, capacity * sizeof(struct block), PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (blocks == MAP_FAILED) {
		return UINT32_MAX;
	}
	memset(unit, 0, sizeof *unit);
	unit->capacity = (uint32_t)capacity;
	unit->blocks = blocks;
	unit->span = span;
	for (uint32_t i = 0; i < span; i++) {
		units[first + i].stride = stride;
		units[first + i].back = i;
	}
	units_used = first + span > units_used ? first + span : units_used;
	return first;
}

static uint64_t
block_address(const struct unit *unit, uint32_t index)
{
	uint64_t base = unit_address((uint32_t)(unit - units));
	if (unit->stride > SMALL_MOST) {
		return base + index * unit->stride;
	}
	uint64_t per_chunk = CHUNK / unit->stride;
	return base + index / per_chunk * CHUNK + index % per_chunk * unit->stride;
}

static struct unit *
unit_of(uint64_t address)
{
	if (units == NULL || address < arena || address >= arena + unit_count * UNIT) {
		return NULL;
	}
	struct unit *unit = &units[(address - arena) / UNIT];
	return unit->stride != 0 ? unit - unit->back : NULL;
}

static uint16_t *
chunk_count(uint64_t address)
{
	return &unit_of(address)->live[(address - arena) % UNIT / CHUNK];
}

static struct block *
fresh_block(struct size_class *class, uint64_t stride)
{
	if (!class->started || class->unit == UINT32_MAX ||
	    units[class->unit].fresh == units[class->unit].capacity) {
		class->unit = unit_open(stride);
		class->started = true;
	}
	if (class->unit == UINT32_MAX) {
		return NULL;
	}
	struct unit *unit = &units[class->unit];
	struct block *block = &unit->blocks[unit->fresh];
	block->address = block_address(unit, unit->fresh);
	unit->fresh++;
	return block;
}

static struct block *
large_block(uint64_t stride)
{
	uint32_t first = unit_open(stride);
	if (first == UINT32_MAX) {
		return NULL;
	}
	units[first].fresh = 1;
	units[first].blocks[0].address = unit_address(first);
	return &units[first].blocks[0];
}

struct block *
block_new(int device, enum block_use use, uint64_t bytes)
{
	if (!arena_open() || bytes > UNIT * unit_count) {
		return NULL;
	}
	uint64_t stride = stride_of(bytes);
	struct block *block = NULL;
	if (stride > UNIT) {
		block = large_block(stride);
	} else {
		struct size_class *class =
		    &classes[device * BLOCK_USES + (int)use][class_of(stride)];
		block = class->free;
		if (block != NULL) {
			class->free = block->next;
			block->address = block->charged; /* kept there while free */
		} else {
			block = fresh_block(class, stride);
		}
	}
	if (block == NULL) {
		return NULL;
	}
	uint64_t address = block->address;
	*block = (struct block){
	    .address = address, .bytes = bytes, .device = device, .use = (uint8_t)use};
	if (stride <= SMALL_MOST) {
		(*chunk_count(address))++;
	}
	return block;
}

void
block_delete(struct block *block)
{
	uint64_t address = block->address;
	struct unit *unit = unit_of(address);
	uint64_t stride = unit->stride;
	if (block->touched) {
		madvise((void *)(uintptr_t)address, (block->bytes + 4095) / 4096 * 4096,
			MADV_DONTNEED);
	}
	if (stride > UNIT) {
		munmap(unit->blocks, sizeof(struct block));
		for (uint32_t i = unit->span; i > 0; i--) {
			unit[i - 1].stride = 0;
		}
		return;
	}
	if (stride <= SMALL_MOST) {
		(*chunk_count(address))--;
	}
	struct size_class *class =
	    &classes[block->device * BLOCK_USES + block->use][class_of(stride)];
	block->next = class->free;
	block->charged = address;
	block->address = 0;
	class->free = block;
}

struct block *
block_find(cu_deviceptr address)
{
	struct unit *unit = unit_of(address);
	if (unit == NULL) {
		return NULL;
	}
	uint64_t offset = address - unit_address((uint32_t)(unit - units));
	uint64_t index = 0;
	if (unit->stride > SMALL_MOST) {
		index = offset / unit->stride;
	} else {
		uint64_t per_chunk = CHUNK / unit->stride;
		index = offset / CHUNK * per_chunk + offset % CHUNK / unit->stride;
	}
	struct block *block = index < unit->fresh ? &unit->blocks[index] : NULL;
	bool inside = block != NULL && block->address != 0 &&
		      address < block->address + (block->bytes > 0 ? block->bytes : 1);
	return inside ? block : NULL;
}

struct block *
block_at(cu_deviceptr address)
{
	struct block *block = block_find(address);
	return block != NULL && block->address == address ? block : NULL;
}

bool
block_is_small(const struct block *block)
{
	return unit_of(block->address)->stride <= SMALL_MOST;
}

bool
block_alone_in_chunk(const struct block *block)
{
	return *chunk_count(block->address) == 1;
}

bool
block_is_device(cu_deviceptr address)
{
	return units != NULL && address >= arena && address < arena + unit_count * UNIT;
}
