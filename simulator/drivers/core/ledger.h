/* Who holds how much of each card. A domain is a card or one of its GPU instances:
 * card * DOMAINS_PER_CARD, plus the GPU instance id. All sizes are bytes. */
#ifndef GPUSLICE_FAKE_LEDGER_H
#define GPUSLICE_FAKE_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "region.h"

/* This process's holding on a domain, created when missing; never NULL. Lock held. */
struct holding *ledger_holding(uint32_t domain);

/* Take physical memory for this process; false when the domain is full. */
bool ledger_charge(uint32_t domain, enum memory_kind kind, uint64_t bytes);
void ledger_refund(uint32_t domain, enum memory_kind kind, uint64_t bytes);
/* The same, and book what the program asked for, a figure of its own beside the physical one. */
bool ledger_take(uint32_t domain, enum memory_kind kind, uint64_t bytes, uint64_t requested);
void ledger_give(uint32_t domain, enum memory_kind kind, uint64_t bytes, uint64_t requested);
void ledger_requested(uint32_t domain, int64_t bytes);

/* Memory a domain has in all, and how much of it can be handed out or is taken. */
uint64_t domain_total(uint32_t domain);
uint64_t domain_usable(uint32_t domain);
uint64_t domain_used(uint32_t domain); /* reaps dead processes first; takes the lock */
uint32_t domain_sm_count(uint32_t domain);

/* Move charged memory into an object that several processes may hold; -1 when the table is full. */
int shared_create(uint32_t domain, enum memory_kind kind, uint64_t bytes, uint64_t *generation);
bool shared_hold(uint32_t index, uint64_t generation);
void shared_drop(uint32_t index);

#endif
