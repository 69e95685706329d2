/* The driver's own table of entry points. Generated; ordered by base name, then stream mode, then
 * version. */
#ifndef GPUSLICE_FAKE_LOOKUP_H
#define GPUSLICE_FAKE_LOOKUP_H

struct cuda_lookup {
	const char *base; /* the name programs ask for */
	int version;      /* the CUDA version in which this form appeared */
	int per_thread;   /* 1: form with the per-thread default stream */
	char *address;
};

extern const struct cuda_lookup cuda_lookup_table[];
extern const unsigned cuda_lookup_count;

#endif
