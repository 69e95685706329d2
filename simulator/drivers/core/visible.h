/* Which cards this process may see at all: NVIDIA_VISIBLE_DEVICES, as a container runtime obeys it.
 */
#ifndef GPUSLICE_FAKE_VISIBLE_H
#define GPUSLICE_FAKE_VISIBLE_H

#include <stdbool.h>
#include <stdint.h>

/* Whether a card is visible, wholly or through one of its GPU instances. */
bool visible_card(uint32_t card);
/* Whether GPU instance gi (1-based) of a card is visible. */
bool visible_instance(uint32_t card, uint32_t gi);
/* Read the environment again; at initialisation. */
void visible_refresh(void);

#endif
