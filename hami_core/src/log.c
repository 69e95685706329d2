/* One write(2) per line, so that lines of several processes do not mix. No stdio: usable inside any
 * hook. */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int
log_threshold(void)
{
	static int cached = -1;
	int level = __atomic_load_n(&cached, __ATOMIC_RELAXED);
	if (level < 0) {
		const char *text = getenv("LIBCUDA_LOG_LEVEL");
		level =
		    text != NULL && text[0] >= '0' && text[0] <= '9' ? text[0] - '0' : LOG_ERROR;
		__atomic_store_n(&cached, level, __ATOMIC_RELAXED);
	}
	return level;
}

void
log_line(enum log_level level, const char *format, ...)
{
	if ((int)level > log_threshold()) {
		return;
	}

	char line[512];
	int start = snprintf(line, sizeof line, "gpuslice[%ld]: ", (long)getpid());
	va_list arguments;
	va_start(arguments, format);
	int body = vsnprintf(line + start, sizeof line - (size_t)start - 1, format, arguments);
	va_end(arguments);

	size_t length = (size_t)start + (size_t)(body < 0 ? 0 : body);
	if (length > sizeof line - 2) {
		length = sizeof line - 2;
	}
	line[length] = '\n';
	ssize_t written = write(STDERR_FILENO, line, length + 1);
	(void)written;
}
