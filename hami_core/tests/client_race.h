/* Racing allocations of the test client. Both print the answer line. */
#ifndef GPUSLICE_CLIENT_RACE_H
#define GPUSLICE_CLIENT_RACE_H

void client_race(unsigned long long bytes, unsigned long rounds);
void client_race_threads(unsigned long threads, unsigned long long bytes, unsigned long rounds);

#endif
