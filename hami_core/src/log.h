/* Lines on stderr, only at LIBCUDA_LOG_LEVEL > 0 (0 silent, 1 errors (default), 2 warnings, 3
 * denials, 4 all). */
#ifndef GPUSLICE_LOG_H
#define GPUSLICE_LOG_H

enum log_level { LOG_ERROR = 1, LOG_WARNING = 2, LOG_DENIAL = 3, LOG_DEBUG = 4 };

__attribute__((format(printf, 2, 3))) void log_line(enum log_level level, const char *format, ...);

#endif
