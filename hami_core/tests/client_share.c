#include "client_share.h"

#include <stdio.h>
#include <string.h>

#include "cuda_abi.h"

#define HANDLE_FABRIC 8

cu_result cuMulticastCreate(cu_handle *multicast, const void *properties);
cu_result cuMulticastAddDevice(cu_handle multicast, cu_device device);
cu_result cuMemAddressReserve(cu_deviceptr *address, size_t bytes, size_t align, cu_deviceptr hint,
			      unsigned long long f);

/* What this process has opened last. */
static cu_deviceptr opened;
static size_t opened_bytes;

static void
print_handle(int result, const void *handle)
{
	const unsigned char *bytes = handle;
	printf("%d ", result);
	for (int i = 0; i < 64; i++) {
		printf("%02x", bytes[i]);
	}
	printf("\n");
}

static void
read_handle(const char *text, void *handle)
{
	unsigned char *bytes = handle;
	for (int i = 0; i < 64; i++) {
		unsigned value = 0;
		sscanf(text + 2 * i, "%2x", &value);
		bytes[i] = (unsigned char)value;
	}
}

static void
do_export(const struct held *block)
{
	struct cu_ipc_handle handle = {{0}};
	int result = CU_INVALID_VALUE;
	if (block != NULL && strcmp(block->kind, "vmm") == 0) {
		cu_handle memory = 0;
		result = cuMemRetainAllocationHandle(&memory, (void *)(uintptr_t)block->address);
		result = result != CU_OK
			     ? result
			     : cuMemExportToShareableHandle(&handle, memory, HANDLE_FABRIC, 0);
		cuMemRelease(memory);
	} else if (block != NULL) {
		result = cuIpcGetMemHandle(&handle, block->address);
	}
	print_handle(result, &handle);
}

static int
import_vmm(struct cu_ipc_handle *handle, size_t bytes)
{
	cu_handle memory = 0;
	int result = cuMemImportFromShareableHandle(&memory, handle, HANDLE_FABRIC);
	if (result == CU_OK) {
		cuMemAddressReserve(&opened, bytes, 0, 0, 0);
		result = cuMemMap(opened, bytes, 0, memory, 0);
		cuMemRelease(memory);
		opened_bytes = bytes;
	}
	return result;
}

/* Memory in use in two more ways, its handle released: result, then a place to end the use. */
static struct {
	cu_handle multicast;
	struct cu_array_map step;
} in_use;

static int
create(cu_handle *memory, size_t bytes)
{
	struct cu_allocation_prop prop = {.type = CU_ALLOCATION_PINNED,
					  .location = {CU_LOCATION_DEVICE, 0}};
	return cuMemCreate(memory, bytes, &prop, 0);
}

static int
bind_multicast(size_t bytes)
{
	struct {
		unsigned devices;
		size_t bytes;
		unsigned long long handle_types, flags;
	} properties = {1, bytes, 0, 0};
	cu_handle memory = 0;
	int result = create(&memory, bytes);
	result = result != CU_OK ? result : cuMulticastCreate(&in_use.multicast, &properties);
	result = result != CU_OK ? result : cuMulticastAddDevice(in_use.multicast, 0);
	result =
	    result != CU_OK ? result : cuMulticastBindMem(in_use.multicast, 0, memory, 0, bytes, 0);
	cuMemRelease(memory);
	return result;
}

static int
map_sparse(size_t bytes)
{
	struct cu_array_descriptor d = {.width = 64, .height = 64, .format = 0x20, .channels = 1};
	cu_array array = NULL;
	cu_handle memory = 0;
	int result = create(&memory, bytes);
	result = result != CU_OK ? result : cuArrayCreate_v2(&array, &d);
	in_use.step = (struct cu_array_map){
	    .resource = array, .operation = CU_MAP_OPERATION, .handle = memory};
	result = result != CU_OK ? result : cuMemMapArrayAsync(&in_use.step, 1, NULL);
	cuMemRelease(memory);
	return result;
}

static int
end_use(const char *kind, size_t bytes)
{
	if (strcmp(kind, "multicast") == 0) {
		return cuMulticastUnbind(in_use.multicast, 0, 0, bytes);
	}
	in_use.step.operation = CU_MAP_OPERATION + 1;
	in_use.step.handle = 0;
	return cuMemMapArrayAsync(&in_use.step, 1, NULL);
}

bool
client_share(const struct command *c, const struct held *newest)
{
	struct cu_ipc_handle handle;
	char kind[16] = "", text[160] = "";
	unsigned long long bytes = 0;
	if (strcmp(c->word, "export") == 0) {
		do_export(newest);
	} else if (strcmp(c->word, "import") == 0) {
		sscanf(c->line, "%*s %15s %llu %159s", kind, &bytes, text);
		read_handle(text, &handle);
		opened_bytes = 0;
		printf("%d\n", strcmp(kind, "vmm") == 0
				   ? import_vmm(&handle, bytes)
				   : cuIpcOpenMemHandle_v2(&opened, handle, 1));
	} else if (strcmp(c->word, "unimport") == 0) {
		printf("%d\n", opened_bytes > 0 ? cuMemUnmap(opened, opened_bytes)
						: cuIpcCloseMemHandle(opened));
	} else if (strcmp(c->word, "use") == 0) {
		printf("%d\n",
		       strcmp(c->a, "multicast") == 0 ? bind_multicast(c->y) : map_sparse(c->y));
	} else if (strcmp(c->word, "unuse") == 0) {
		printf("%d\n", end_use(c->a, c->y));
	} else {
		return false;
	}
	return true;
}
