#include "yaml.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 32 };

struct parser {
	const char *at;
	int line;
	int depth;
	char *error;
	size_t error_size;
	bool failed;
};

static void
fail(struct parser *p, const char *format, ...)
{
	if (p->failed) {
		return;
	}
	p->failed = true;
	int used = snprintf(p->error, p->error_size, "line %d: ", p->line);
	va_list args;
	va_start(args, format);
	if (used > 0 && (size_t)used < p->error_size) {
		vsnprintf(p->error + used, p->error_size - (size_t)used, format, args);
	}
	va_end(args);
}

static struct yaml_node *
node_new(struct parser *p, enum yaml_kind kind)
{
	struct yaml_node *node = calloc(1, sizeof *node);
	if (node == NULL) {
		fail(p, "out of memory");
		return NULL;
	}
	node->kind = kind;
	node->line = p->line;
	return node;
}

void
yaml_free(struct yaml_node *node)
{
	while (node != NULL) {
		struct yaml_node *next = node->next;
		yaml_free(node->child);
		free(node->key);
		free(node->text);
		free(node);
		node = next;
	}
}

const struct yaml_node *
yaml_get(const struct yaml_node *map, const char *key)
{
	if (map == NULL || map->kind != YAML_MAP) {
		return NULL;
	}
	for (const struct yaml_node *n = map->child; n != NULL; n = n->next) {
		if (strcmp(n->key, key) == 0) {
			return n;
		}
	}
	return NULL;
}

static void
skip_comment(struct parser *p)
{
	while (*p->at != '\0' && *p->at != '\n') {
		p->at++;
	}
}

/* Move to the next line that holds something; returns its indent, or -1 at the end. */
static int
next_content(struct parser *p)
{
	while (*p->at != '\0') {
		const char *start = p->at;
		while (*p->at == ' ') {
			p->at++;
		}
		if (*p->at == '\t') {
			fail(p, "a tab in the indentation; use spaces");
			return -1;
		}
		if (*p->at == '#') {
			skip_comment(p);
		} else if (*p->at == '\r') {
			p->at++;
		}
		if (*p->at == '\n') {
			p->at++;
			p->line++;
			continue;
		}
		if (*p->at == '\0') {
			return -1;
		}
		return (int)(p->at - start);
	}
	return -1;
}

static char *
copy_text(struct parser *p, const char *from, size_t length)
{
	char *text = malloc(length + 1);
	if (text == NULL) {
		fail(p, "out of memory");
		return NULL;
	}
	memcpy(text, from, length);
	text[length] = '\0';
	return text;
}

/* A quoted scalar. Single quotes double to escape; double quotes know \" and \\ only. */
static char *
read_quoted(struct parser *p)
{
	char quote = *p->at++;
	char *text = malloc(strlen(p->at) + 1);
	size_t n = 0;
	if (text == NULL) {
		fail(p, "out of memory");
		return NULL;
	}
	while (*p->at != '\0' && *p->at != '\n') {
		if (*p->at == quote && quote == '\'' && p->at[1] == quote) {
			p->at++;
		} else if (*p->at == quote) {
			p->at++;
			text[n] = '\0';
			return text;
		} else if (quote == '"' && *p->at == '\\') {
			p->at++;
			if (*p->at != '"' && *p->at != '\\') {
				break;
			}
		}
		text[n++] = *p->at++;
	}
	free(text);
	fail(p,
	     "a quoted text does not end on its line, or has an escape other than \\\" and \\\\");
	return NULL;
}

/* A plain scalar up to stop characters, ": ", " #" or the end of the line. */
static char *
read_plain(struct parser *p, const char *stop)
{
	if (strchr("&*!|>%@`", *p->at) != NULL && *p->at != '\0') {
		fail(p, "'%c' starts a YAML feature that inventories do not use", *p->at);
		return NULL;
	}
	const char *start = p->at;
	while (*p->at != '\0' && *p->at != '\n' && strchr(stop, *p->at) == NULL) {
		bool ends_key = *p->at == ':' && strchr(" \r\n", p->at[1]) != NULL;
		bool ends_text = *p->at == '#' && p->at > start && p->at[-1] == ' ';
		if (ends_key || ends_text) {
			break;
		}
		p->at++;
	}
	const char *end = p->at;
	while (end > start && strchr(" \r", end[-1]) != NULL) {
		end--;
	}
	char *text = copy_text(p, start, (size_t)(end - start));
	if (text != NULL && (strcmp(text, "null") == 0 || strcmp(text, "~") == 0)) {
		text[0] = '\0';
	}
	return text;
}

static char *
read_scalar(struct parser *p, const char *stop)
{
	return *p->at == '"' || *p->at == '\'' ? read_quoted(p) : read_plain(p, stop);
}

static void
skip_blank(struct parser *p, bool lines)
{
	for (;;) {
		while (*p->at == ' ' || *p->at == '\r') {
			p->at++;
		}
		if (*p->at == '#') {
			skip_comment(p);
		}
		if (!lines || *p->at != '\n') {
			return;
		}
		p->line++;
		p->at++;
	}
}

static bool
append(struct parser *p, struct yaml_node *parent, struct yaml_node *child)
{
	struct yaml_node **last = &parent->child;
	while (*last != NULL) {
		if (child->key != NULL && strcmp((*last)->key, child->key) == 0) {
			fail(p, "key '%s' appears twice", child->key);
			yaml_free(child);
			return false;
		}
		last = &(*last)->next;
	}
	*last = child;
	return true;
}

static struct yaml_node *read_flow(struct parser *p);

static struct yaml_node *
read_flow_item(struct parser *p, bool in_map)
{
	char *key = NULL;
	if (in_map) {
		key = read_scalar(p, ",[]{}:");
		skip_blank(p, true);
		if (key == NULL || *p->at != ':') {
			fail(p, "a key in {} needs ': value'");
			free(key);
			return NULL;
		}
		p->at++;
		skip_blank(p, true);
	}
	struct yaml_node *item = read_flow(p);
	if (item == NULL) {
		free(key);
		return NULL;
	}
	item->key = key;
	return item;
}

/* One value inside [] or {}, or one of these themselves. */
static struct yaml_node *
read_flow(struct parser *p)
{
	if (*p->at != '[' && *p->at != '{') {
		struct yaml_node *scalar = node_new(p, YAML_SCALAR);
		if (scalar != NULL) {
			scalar->text = read_scalar(p, ",[]{}");
		}
		return scalar;
	}
	bool is_map = *p->at == '{';
	char close = is_map ? '}' : ']';
	struct yaml_node *node = node_new(p, is_map ? YAML_MAP : YAML_LIST);
	p->at++;
	if (++p->depth > MAX_DEPTH) {
		fail(p, "nested deeper than %d", MAX_DEPTH);
	}
	skip_blank(p, true);
	while (!p->failed && *p->at != close) {
		struct yaml_node *item = read_flow_item(p, is_map);
		if (item == NULL || !append(p, node, item)) {
			break;
		}
		skip_blank(p, true);
		if (*p->at == ',') {
			p->at++;
			skip_blank(p, true);
		} else if (*p->at != close) {
			fail(p, "expected ',' or '%c'", close);
		}
	}
	p->depth--;
	if (!p->failed) {
		p->at++;
	}
	return node;
}

static struct yaml_node *read_block(struct parser *p, int indent);

static void
expect_line_end(struct parser *p)
{
	skip_blank(p, false);
	if (*p->at != '\n' && *p->at != '\0') {
		fail(p, "unexpected text '%.12s'", p->at);
	}
}

/* The value behind "key:" or "- " : on this line, or the deeper block below. */
static struct yaml_node *
read_value(struct parser *p, int parent_indent, bool in_map)
{
	skip_blank(p, false);
	if (*p->at != '\n' && *p->at != '\0') {
		struct yaml_node *value = read_flow(p);
		if (!p->failed) {
			expect_line_end(p);
		}
		return value;
	}
	const char *saved = p->at;
	int saved_line = p->line;
	int indent = next_content(p);
	bool list_at_same_indent =
	    in_map && indent == parent_indent && p->at[0] == '-' && p->at[1] == ' ';
	if (indent > parent_indent || list_at_same_indent) {
		return read_block(p, indent);
	}
	p->at = saved;
	p->line = saved_line;
	struct yaml_node *null = node_new(p, YAML_SCALAR);
	if (null != NULL) {
		null->text = copy_text(p, "", 0);
	}
	return null;
}

/* Whether the text at the cursor starts with "key:". */
static bool
starts_map(const char *at)
{
	if (*at == '"' || *at == '\'') {
		const char *end = strchr(at + 1, *at);
		return end != NULL && end[1] == ':';
	}
	for (; *at != '\0' && *at != '\n'; at++) {
		if (*at == ':' && strchr(" \r\n", at[1]) != NULL) {
			return true;
		}
		if (*at == '{' || *at == '[' || (*at == '#' && at[-1] == ' ')) {
			return false;
		}
	}
	return false;
}

static bool
read_map_entry(struct parser *p, struct yaml_node *map, int indent)
{
	if (!starts_map(p->at)) {
		fail(p, "expected 'key: value'");
		return false;
	}
	char *key = read_scalar(p, "");
	if (key == NULL || *p->at != ':') {
		free(key);
		fail(p, "expected ':' after a key");
		return false;
	}
	p->at++;
	struct yaml_node *value = read_value(p, indent, true);
	if (value == NULL) {
		free(key);
		return false;
	}
	value->key = key;
	return append(p, map, value) && !p->failed;
}

static bool
read_list_entry(struct parser *p, struct yaml_node *list, int indent)
{
	p->at++;
	int inner = indent + 1;
	while (*p->at == ' ') {
		p->at++;
		inner++;
	}
	bool block = starts_map(p->at) || (*p->at == '-' && p->at[1] == ' ');
	struct yaml_node *value = block ? read_block(p, inner) : read_value(p, indent, false);
	return value != NULL && append(p, list, value) && !p->failed;
}

/* A block mapping or sequence whose first entry is at the cursor, at column indent. */
static struct yaml_node *
read_block(struct parser *p, int indent)
{
	bool is_list = p->at[0] == '-' && strchr(" \r\n", p->at[1]) != NULL;
	if (!is_list && !starts_map(p->at)) {
		return read_value(p, indent - 1, false);
	}
	struct yaml_node *node = node_new(p, is_list ? YAML_LIST : YAML_MAP);
	if (node == NULL || ++p->depth > MAX_DEPTH) {
		fail(p, "nested deeper than %d", MAX_DEPTH);
		return node;
	}
	int column = indent;
	const char *saved = p->at;
	int saved_line = p->line;
	while (column == indent && !p->failed) {
		bool dash = p->at[0] == '-' && strchr(" \r\n", p->at[1]) != NULL;
		if (dash != is_list) {
			if (!is_list) {
				fail(p, "a list item among keys");
			}
			p->at = saved;
			p->line = saved_line;
			break;
		}
		if (!(is_list ? read_list_entry(p, node, indent)
			      : read_map_entry(p, node, indent))) {
			break;
		}
		saved = p->at;
		saved_line = p->line;
		column = next_content(p);
		if (column > indent) {
			fail(p, "indented deeper than the entry before");
		} else if (column < indent) {
			p->at = saved;
			p->line = saved_line;
		}
	}
	p->depth--;
	return node;
}

struct yaml_node *
yaml_parse(const char *text, char *error, size_t error_size)
{
	struct parser p = {.at = text, .line = 1, .error = error, .error_size = error_size};
	int indent = next_content(&p);
	if (indent >= 0 && strncmp(p.at, "---", 3) == 0) {
		skip_comment(&p);
		indent = next_content(&p);
	}
	if (indent < 0) {
		fail(&p, "the document is empty");
		return NULL;
	}
	struct yaml_node *root = read_block(&p, indent);
	if (!p.failed && next_content(&p) >= 0) {
		fail(&p, "text after the document, or indentation that matches no entry");
	}
	if (p.failed) {
		yaml_free(root);
		return NULL;
	}
	return root;
}
