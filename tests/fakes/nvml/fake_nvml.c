/* A stand-in for NVIDIA's libnvidia-ml.so.1, scripted by a text file.
 *
 * The file named by MMGPU_FAKE_NVML is read again at every call, so a test can
 * change it mid-run. One word and its values per line; unknown words are errors
 * (NVML_ERROR_UNKNOWN from every call), so that a typo cannot pass for a test:
 *
 *   driver 550.90.07                  driver version
 *   init 9                            return code of nvmlInit (default 0)
 *   device GPU-8a56...                begins a device; MIG-... is a slice
 *   name NVIDIA H200                  lines below belong to that device
 *   bus 00000000:3B:00.0
 *   memory 1000 400                   bytes: total, used
 *   util 0 80 95                      per cent, one per call, cycled
 *   mig 1                             MIG mode
 *   fail util 15 3                    code 15 from the fourth such call on
 *
 * A figure without its line is "not supported". Calls are counted per device
 * and figure (util, memory, name, uuid) since the first nvmlInit.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6,
       SHORT = 7, UNKNOWN = 999 };
enum { UTIL, MEMORY, NAME, UUID, FIGURES };
enum { DEVICES = 16, VALUES = 256, TEXT = 96, LINE = 4096 };

static const char *const figure_names[FIGURES] = {"util", "memory", "name", "uuid"};

typedef struct {
    char uuid[TEXT], name[TEXT], bus[TEXT];
    unsigned long long total, used;
    int has_memory, utils, mig;
    long util[VALUES];
    int fail_code[FIGURES], fail_after[FIGURES];
} Device;

/* Per thread, since each call fills them anew: a sampler thread may be reading. */
static _Thread_local Device devices[DEVICES];
static _Thread_local int device_count, init_code;
int users; /* read by tests: how many inits had no shutdown */
static _Thread_local char driver[TEXT];
static int calls[DEVICES][FIGURES];

static int parse_line(char *line) {
    char word[TEXT], figure[TEXT];
    int length = 0, code, after;
    if (sscanf(line, " %95s %n", word, &length) < 1 || word[0] == '#') return 1;
    char *rest = line + length;
    Device *device = device_count ? &devices[device_count - 1] : NULL;
    if (!strcmp(word, "driver")) return snprintf(driver, TEXT, "%s", rest) >= 0;
    if (!strcmp(word, "init")) return sscanf(rest, "%d", &init_code) == 1;
    if (!strcmp(word, "device")) {
        if (device_count == DEVICES) return 0;
        device = &devices[device_count++];
        device->mig = -1;
        return snprintf(device->uuid, TEXT, "%s", rest) >= 0;
    }
    if (!device) return 0;
    if (!strcmp(word, "name")) return snprintf(device->name, TEXT, "%s", rest) >= 0;
    if (!strcmp(word, "bus")) return snprintf(device->bus, TEXT, "%s", rest) >= 0;
    if (!strcmp(word, "mig")) return sscanf(rest, "%d", &device->mig) == 1;
    if (!strcmp(word, "memory")) {
        device->has_memory = 1;
        return sscanf(rest, "%llu %llu", &device->total, &device->used) == 2;
    }
    if (!strcmp(word, "util")) {
        char *end = rest;
        while (device->utils < VALUES) {
            long value = strtol(rest, &end, 10);
            if (end == rest) break;
            device->util[device->utils++] = value;
            rest = end;
        }
        return *rest == '\0' && device->utils > 0;
    }
    if (!strcmp(word, "fail") && sscanf(rest, "%95s %d %d", figure, &code, &after) == 3)
        for (int i = 0; i < FIGURES; i++)
            if (!strcmp(figure, figure_names[i])) {
                device->fail_code[i] = code;
                device->fail_after[i] = after;
                return 1;
            }
    return 0;
}

static int read_script(void) {
    const char *path = getenv("MMGPU_FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[LINE];
    int good = file != NULL;
    memset(devices, 0, sizeof devices);
    device_count = init_code = 0;
    driver[0] = '\0';
    while (file && good && fgets(line, LINE, file)) {
        line[strcspn(line, "\r\n")] = '\0';
        good = parse_line(line);
    }
    if (file) fclose(file);
    return good ? OK : UNKNOWN;
}

static int enter(void) { return users ? read_script() : UNINITIALIZED; }

/* Handles are indices plus one: the table itself is rewritten at each call. */
static void *to_handle(int index) { return (void *)(long)(index + 1); }

static int enter_device(void *handle, int figure, Device **device) {
    int code = enter(), index = (int)(long)handle - 1;
    if (code) return code;
    if (index < 0 || index >= device_count) return INVALID;
    *device = &devices[index];
    if (figure == FIGURES) return OK;
    int done = calls[index][figure]++;
    if ((*device)->fail_code[figure] && done >= (*device)->fail_after[figure])
        return (*device)->fail_code[figure];
    return OK;
}

static int give(const char *text, char *out, unsigned length) {
    if (!text[0]) return UNSUPPORTED;
    return (unsigned)snprintf(out, length, "%s", text) < length ? OK : SHORT;
}

static int is_slice(const Device *device) { return !strncmp(device->uuid, "MIG-", 4); }

int nvmlInitWithFlags(unsigned flags) {
    int code = read_script();
    (void)flags;
    if (code || init_code) return code ? code : init_code;
    if (!users++) memset(calls, 0, sizeof calls);
    return OK;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) { return users ? (users--, OK) : UNINITIALIZED; }

const char *nvmlErrorString(int code) {
    return code == OK ? "Success" : "an error of the fake library";
}

int nvmlSystemGetDriverVersion(char *out, unsigned length) {
    int code = enter();
    return code ? code : give(driver, out, length);
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    int code = enter();
    *count = 0;
    for (int i = 0; !code && i < device_count; i++) *count += !is_slice(&devices[i]);
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned wanted, void **handle) {
    int code = enter();
    for (int i = 0; !code && i < device_count; i++)
        if (!is_slice(&devices[i]) && wanted-- == 0) return *handle = to_handle(i), OK;
    return code ? code : INVALID;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    int code = enter();
    if (code) return code;
    if (strncmp(uuid, "GPU-", 4) && strncmp(uuid, "MIG-", 4)) return INVALID;
    for (int i = 0; i < device_count; i++)
        if (!strcmp(devices[i].uuid, uuid)) return *handle = to_handle(i), OK;
    return NOT_FOUND;
}

static int parse_bus(const char *text, unsigned bus[4]) {
    return sscanf(text, "%x:%x:%x.%x", &bus[0], &bus[1], &bus[2], &bus[3]) == 4;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **handle) {
    unsigned wanted[4], bus[4];
    int code = enter();
    if (code) return code;
    if (!parse_bus(text, wanted)) return INVALID;
    for (int i = 0; i < device_count; i++)
        if (parse_bus(devices[i].bus, bus) && !memcmp(bus, wanted, sizeof bus))
            return *handle = to_handle(i), OK;
    return NOT_FOUND;
}

int nvmlDeviceGetName(void *handle, char *out, unsigned length) {
    Device *device;
    int code = enter_device(handle, NAME, &device);
    return code ? code : give(device->name, out, length);
}

int nvmlDeviceGetUUID(void *handle, char *out, unsigned length) {
    Device *device;
    int code = enter_device(handle, UUID, &device);
    return code ? code : give(device->uuid, out, length);
}

int nvmlDeviceGetUtilizationRates(void *handle, unsigned out[2]) {
    Device *device;
    int code = enter_device(handle, UTIL, &device);
    if (code) return code;
    if (!device->utils) return UNSUPPORTED;
    int done = calls[device - devices][UTIL] - 1;
    out[0] = (unsigned)device->util[done % device->utils];
    out[1] = 0;
    return OK;
}

int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long out[3]) {
    Device *device;
    int code = enter_device(handle, MEMORY, &device);
    if (code) return code;
    if (!device->has_memory) return UNSUPPORTED;
    out[0] = device->total;
    out[1] = device->total - device->used;
    out[2] = device->used;
    return OK;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    Device *device;
    int code = enter_device(handle, FIGURES, &device);
    if (code || device->mig < 0) return code ? code : UNSUPPORTED;
    *current = *pending = (unsigned)device->mig;
    return OK;
}
