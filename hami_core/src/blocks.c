/* Sixteen open-addressing tables, each with its own lock; linear probing with backward shift, no
 * tombstones.
 *
 * Fork: the child's driver state is not usable, so its tables start empty; the parent's memory is
 * left alone.
 */
#include "blocks.h"

#include <stdlib.h>
#include <string.h>

#include "lock.h"
#include "postfork.h"

#define SHARDS 16
#define FIRST_CAPACITY 64

struct shard {
	struct lock lock;
	struct block *slots;
	size_t capacity; /* power of two, or 0 */
	size_t used;
} __attribute__((aligned(64)));

static struct shard shards[SHARDS];

static uint64_t
mix(uint64_t key, uint8_t space)
{
	uint64_t value = (key ^ ((uint64_t)space << 56)) * 0x9E3779B97F4A7C15ULL;
	return value ^ (value >> 32);
}

static struct shard *
shard_of(uint64_t hash)
{
	return &shards[(hash >> 60) & (SHARDS - 1)];
}

static size_t
find(const struct shard *shard, uint64_t hash, uint64_t key, uint8_t space)
{
	size_t mask = shard->capacity - 1;
	size_t at = (size_t)hash & mask;
	while (shard->slots[at].key != 0 &&
	       (shard->slots[at].key != key || shard->slots[at].space != space)) {
		at = (at + 1) & mask;
	}
	return at;
}

static bool
grow(struct shard *shard)
{
	struct shard bigger = {.capacity =
				   shard->capacity == 0 ? FIRST_CAPACITY : shard->capacity * 2};
	bigger.slots = calloc(bigger.capacity, sizeof *bigger.slots);
	if (bigger.slots == NULL) {
		return false;
	}
	for (size_t i = 0; i < shard->capacity; i++) {
		const struct block *block = &shard->slots[i];
		if (block->key != 0) {
			bigger.slots[find(&bigger, mix(block->key, block->space), block->key,
					  block->space)] = *block;
		}
	}
	free(shard->slots);
	shard->slots = bigger.slots;
	shard->capacity = bigger.capacity;
	return true;
}

bool
block_put(const struct block *block)
{
	uint64_t hash = mix(block->key, block->space);
	struct shard *shard = shard_of(hash);
	lock_acquire(&shard->lock);
	bool room = shard->used * 4 < shard->capacity * 3 || grow(shard);
	if (room) {
		struct block *slot = &shard->slots[find(shard, hash, block->key, block->space)];
		shard->used += slot->key == 0;
		*slot = *block;
	}
	lock_release(&shard->lock);
	return room;
}

static void
remove_at(struct shard *shard, size_t hole)
{
	size_t mask = shard->capacity - 1;
	for (size_t at = (hole + 1) & mask; shard->slots[at].key != 0; at = (at + 1) & mask) {
		size_t home = (size_t)mix(shard->slots[at].key, shard->slots[at].space) & mask;
		if (((at - home) & mask) >= ((at - hole) & mask)) {
			shard->slots[hole] = shard->slots[at];
			hole = at;
		}
	}
	shard->slots[hole].key = 0;
	shard->used--;
}

static bool
lookup(enum block_space space, uint64_t key, struct block *out, bool remove)
{
	uint64_t hash = mix(key, (uint8_t)space);
	struct shard *shard = shard_of(hash);
	bool found = false;
	lock_acquire(&shard->lock);
	if (key != 0 && shard->used > 0) {
		size_t at = find(shard, hash, key, (uint8_t)space);
		found = shard->slots[at].key != 0;
		if (found) {
			*out = shard->slots[at];
		}
		if (found && remove) {
			remove_at(shard, at);
		}
	}
	lock_release(&shard->lock);
	return found;
}

bool
block_take(enum block_space space, uint64_t key, struct block *out)
{
	return lookup(space, key, out, true);
}

bool
block_peek(enum block_space space, uint64_t key, struct block *out)
{
	return lookup(space, key, out, false);
}

/* Remove the first block of an owner at or behind *at. */
static bool
take_owned(struct shard *shard, uint64_t owner, size_t *at, struct block *out)
{
	bool found = false;
	lock_acquire(&shard->lock);
	for (; *at < shard->capacity && !found; *at += !found) {
		found = shard->slots[*at].key != 0 && shard->slots[*at].owner == owner;
	}
	if (found) {
		*out = shard->slots[*at];
		remove_at(shard, *at);
	}
	lock_release(&shard->lock);
	return found;
}

/* `dropped` runs without a lock: it may look into the tables itself. */
void
blocks_drop_owner(uint64_t owner, void (*dropped)(const struct block *))
{
	for (unsigned i = 0; i < SHARDS; i++) {
		struct block block;
		size_t at = 0;
		while (take_owned(&shards[i], owner, &at, &block)) {
			dropped(&block);
		}
	}
}

void
blocks_postfork_child(void)
{
	memset(shards, 0, sizeof shards);
}
