/* A strict reader for the part of YAML that inventories use: block and flow mappings and sequences,
 * plain and quoted scalars, comments. Anchors, tags, block scalars and tabs are refused by name. */
#ifndef GPUSLICE_FAKE_YAML_H
#define GPUSLICE_FAKE_YAML_H

#include <stddef.h>
#include <stdint.h>

enum yaml_kind { YAML_SCALAR, YAML_MAP, YAML_LIST };

struct yaml_node {
	enum yaml_kind kind;
	char *key;  /* name within a mapping, else NULL */
	char *text; /* scalars only; "" for null */
	int line;   /* 1-based, for messages */
	struct yaml_node *child;
	struct yaml_node *next;
};

/* Parse a whole document. Returns NULL and writes one line "line N: problem" into error. */
struct yaml_node *yaml_parse(const char *text, char *error, size_t error_size);
void yaml_free(struct yaml_node *node);

/* The member of a mapping, or NULL. */
const struct yaml_node *yaml_get(const struct yaml_node *map, const char *key);

#endif
