#include "client_share.h"

#include <stdio.h>
#include <string.h>

#include "cuda_abi.h"

#define HANDLE_FABRIC 8

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
	} else {
		return false;
	}
	return true;
}
