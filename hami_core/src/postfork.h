/* Fork: what each module does in the child. Called in this order by devices.c. */
#ifndef GPUSLICE_POSTFORK_H
#define GPUSLICE_POSTFORK_H

void process_postfork_child(void);
void driver_postfork_child(void);
void limits_postfork_child(void);
void blocks_postfork_child(void);
void state_postfork_child(void);
void books_postfork_child(void);
void devices_postfork_child(void);
void small_postfork_child(void);
void pools_postfork_child(void);
void vmm_postfork_child(void);
void compute_postfork_child(void);

#endif
