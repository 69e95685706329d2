/* cuDeviceGetAttribute. Values that differ by card come from the inventory; the rest are those of a
 * data-centre card of the last generations. */
#include "driver.h"

/* Attributes equal on all cards, by their number in cuda.h. */
static const int constants[162] = {
    [1] = 1024,        [2] = 1024,    [3] = 1024,     [4] = 64,      [5] = 2147483647,
    [6] = 65535,       [7] = 65535,   [8] = 49152,    [9] = 65536,   [10] = 32,
    [11] = 2147483647, [12] = 65536,  [14] = 512,     [15] = 1,      [17] = 0,
    [18] = 0,          [19] = 1,      [20] = 0,       [21] = 131072, [22] = 131072,
    [23] = 65536,      [24] = 16384,  [25] = 16384,   [26] = 16384,  [27] = 32768,
    [28] = 32768,      [29] = 2048,   [30] = 512,     [31] = 1,      [35] = 0,
    [38] = 41943040,   [40] = 3,      [41] = 1,       [42] = 32768,  [43] = 2048,
    [44] = 1,          [45] = 32768,  [46] = 32768,   [47] = 8192,   [48] = 8192,
    [49] = 32768,      [51] = 32,     [52] = 32768,   [53] = 32768,  [54] = 2046,
    [55] = 32768,      [56] = 131072, [57] = 65536,   [58] = 16384,  [59] = 16384,
    [60] = 16384,      [61] = 32768,  [62] = 2048,    [63] = 32768,  [64] = 32768,
    [65] = 2048,       [66] = 32768,  [67] = 32768,   [68] = 2046,   [69] = 268435456,
    [70] = 131072,     [71] = 65000,  [72] = 2097120, [73] = 32768,  [74] = 32768,
    [77] = 32768,      [78] = 1,      [79] = 1,       [80] = 1,      [81] = 167936,
    [82] = 65536,      [83] = 1,      [84] = 0,       [86] = 0,      [87] = 2,
    [88] = 0,          [89] = 1,      [90] = 1,       [91] = 1,      [92] = 1,
    [93] = 1,          [94] = 1,      [95] = 1,       [96] = 1,      [97] = 166912,
    [98] = 0,          [99] = 1,      [100] = 0,      [101] = 0,     [102] = 1,
    [103] = 1,         [106] = 32,    [108] = 0,      [109] = 0,     [111] = 1024,
    [113] = 0,         [115] = 1,     [119] = 1,      [122] = 1,     [123] = 1,
    [125] = 1,         [126] = 1,     [129] = 1,      [130] = 0,     [131] = -1,
    [132] = 0,         [133] = 0,     [141] = 0,      [144] = 0,     [145] = 0,
};

/* What follows from the card's model. */
static bool
by_model(const struct card_model *model, int attribute, int *value)
{
	switch (attribute) {
	case 13:
		*value = (int)model->clock_mhz * 1000;
		return true;
	case 36:
		*value = (int)model->memory_clock_mhz * 1000;
		return true;
	case 37:
		*value = (int)model->bus_width;
		return true;
	case 39:
		*value = (int)model->threads_per_sm;
		return true;
	case 75:
		*value = model->cc_major;
		return true;
	case 76:
		*value = model->cc_minor;
		return true;
	case 120:
	case 127:
		*value = model->cc_major >= 9;
		return true;
	case 139:
		*value = (int)(model->pci_device << 16 | 0x10DE);
		return true;
	default:
		return false;
	}
}

/* What is this very card's own. */
static bool
by_card(const struct gpu *gpu, int attribute, int *value)
{
	const struct card *card = gpu_card(gpu);
	switch (attribute) {
	case 16:
		*value = (int)domain_sm_count(gpu->domain);
		return true;
	case 32:
		*value = card->ecc;
		return true;
	case 33:
		*value = (int)card->pci_bus;
		return true;
	case 34:
		*value = (int)card->pci_device;
		return true;
	case 50:
		*value = (int)card->pci_domain;
		return true;
	case 85:
		*value = (int)gpu->card;
		return true;
	case 134:
		*value = card->numa;
		return true;
	default:
		return by_model(card_model(card), attribute, value);
	}
}

cu_result
fake_cuDeviceGetAttribute(int *value, int attribute, cu_device device)
{
	const struct gpu *gpu = gpu_at(device);
	if (value == NULL || gpu == NULL) {
		return value == NULL ? CU_INVALID_VALUE : CU_INVALID_DEVICE;
	}
	if (attribute < 1 || attribute >= (int)(sizeof constants / sizeof constants[0])) {
		return CU_INVALID_VALUE;
	}
	if (!by_card(gpu, attribute, value)) {
		*value = constants[attribute];
	}
	return CU_OK;
}

cu_result
fake_cuDeviceGetProperties(struct device_properties *out, cu_device device)
{
	const struct gpu *gpu = gpu_at(device);
	if (out == NULL || gpu == NULL) {
		return out == NULL ? CU_INVALID_VALUE : CU_INVALID_DEVICE;
	}
	*out = (struct device_properties){1024,
					  {1024, 1024, 64},
					  {2147483647, 65535, 65535},
					  49152,
					  65536,
					  32,
					  2147483647,
					  65536,
					  0,
					  512};
	out->clock_khz = (int)card_model(gpu_card(gpu))->clock_mhz * 1000;
	return CU_OK;
}
