/* Named points at which a test build (-DGPUSLICE_FAULTS) kills its own process:
 * GPUSLICE_FAULT="name" or "name:N" (the Nth time, from 1). In the product they are nothing. */
#ifndef GPUSLICE_FAULTS_H
#define GPUSLICE_FAULTS_H

#ifdef GPUSLICE_FAULTS
void fault_point(const char *name);
#define FAULT_POINT(name) fault_point(name)
#else
#define FAULT_POINT(name) ((void)0)
#endif

#endif
