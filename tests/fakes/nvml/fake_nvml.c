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
 *   mig 1                             MIG mode; devices MIG-... that follow are its
 *   clocks 1980 2619                  MHz: SM, memory
 *   temperature 61                    degrees Celsius
 *   reasons 0x44                      clocks event reasons
 *   gpm 50                            SM activity in per cent
 *   fail util 15 3                    code 15 from the fourth such call on
 *   fail util 15 3 1                  and for one call only
 *   errortext garbage                 (before any device) bytes that are no text
 *
 * A figure without its line is "not supported". Calls are counted per device
 * and figure (see figure_names) since the first nvmlInit.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6,
       SHORT = 7, UNKNOWN = 999 };
enum { UTIL, MEMORY, NAME, UUID, CLOCKS, TEMPERATURE, REASONS, GPM, FIGURES };
enum { DEVICES = 16, VALUES = 256, TEXT = 96, LINE = 8192 };

static const char *const figure_names[FIGURES] = {
    "util", "memory", "name", "uuid", "clocks", "temperature", "reasons", "gpm"};

typedef unsigned long long u64;
typedef struct {
    char uuid[TEXT], name[TEXT], bus[TEXT];
    u64 total, used;
    int has_memory, utils, mig;
    long util[VALUES];
    int has[FIGURES];
    unsigned clock[2], temperature;
    u64 reasons;
    double gpm;
    int fail_code[FIGURES], fail_after[FIGURES], fail_calls[FIGURES];
} Device;

/* Per thread, since each call fills them anew: a sampler thread may be reading. */
static _Thread_local Device devices[DEVICES];
static _Thread_local int device_count, init_code;
static _Thread_local int garbage_text;
/* Read by tests: how many inits had no shutdown, and GPM samples no free. */
int users, gpm_samples;
static _Thread_local char driver[TEXT];
static int calls[DEVICES][FIGURES];

static int parse_numbers(char *rest, long *values) {
    int count = 0;
    char *end = rest;
    while (count < VALUES) {
        long value = strtol(rest, &end, 0);
        if (end == rest) break;
        values[count++] = value;
        rest = end;
    }
    return *rest == '\0' ? count : -1;
}

static int parse_gpu(Device *device, const char *word, char *rest) {
    long numbers[VALUES] = {0};
    if (!strcmp(word, "gpm")) {
        device->has[GPM] = 1;
        return sscanf(rest, "%lf", &device->gpm) == 1;
    }
    int count = parse_numbers(rest, numbers);
    for (int i = CLOCKS; i <= REASONS; i++)
        if (!strcmp(word, figure_names[i])) device->has[i] = 1;
    if (!strcmp(word, "clocks"))
        return device->clock[0] = numbers[0], device->clock[1] = numbers[1], count == 2;
    if (!strcmp(word, "temperature")) return device->temperature = numbers[0], count == 1;
    if (!strcmp(word, "reasons")) return device->reasons = numbers[0], count == 1;
    return 0;
}

static int parse_line(char *line) {
    char word[TEXT], figure[TEXT];
    int length = 0, code, after, only = 0;
    if (sscanf(line, " %95s %n", word, &length) < 1 || word[0] == '#') return 1;
    char *rest = line + length;
    Device *device = device_count ? &devices[device_count - 1] : NULL;
    if (!strcmp(word, "driver")) return snprintf(driver, TEXT, "%s", rest) >= 0;
    if (!strcmp(word, "init")) return sscanf(rest, "%d", &init_code) == 1;
    if (!strcmp(word, "errortext")) return garbage_text = 1;
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
    if (!strcmp(word, "util"))
        return (device->utils = parse_numbers(rest, device->util)) > 0;
    if (strcmp(word, "fail")) return parse_gpu(device, word, rest);
    if (sscanf(rest, "%95s %d %d %d", figure, &code, &after, &only) < 3) return 0;
    for (int i = 0; i < FIGURES; i++)
        if (!strcmp(figure, figure_names[i])) {
            device->fail_code[i] = code;
            device->fail_after[i] = after;
            device->fail_calls[i] = only;
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
    device_count = init_code = garbage_text = 0;
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
    int done = calls[index][figure]++, after = (*device)->fail_after[figure];
    int only = (*device)->fail_calls[figure];
    if ((*device)->fail_code[figure] && done >= after && (!only || done < after + only))
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
    if (users) read_script();
    if (garbage_text) return "\xff\xfe\xff";
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

/* What a card may lack; older drivers lack the symbols too. */

static int enter_offered(void *handle, int figure, Device **device) {
    int code = enter_device(handle, figure, device);
    return code ? code : (*device)->has[figure] ? OK : UNSUPPORTED;
}

int nvmlDeviceGetClockInfo(void *handle, unsigned type, unsigned *out) {
    Device *device;
    int code = enter_offered(handle, CLOCKS, &device);
    if (code) return code;
    if (type != 1 && type != 2) return INVALID;
    *out = device->clock[type - 1];
    return OK;
}

int nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *out) {
    Device *device;
    int code = enter_offered(handle, TEMPERATURE, &device);
    if (code || sensor) return code ? code : INVALID;
    *out = device->temperature;
    return OK;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, u64 *out) {
    Device *device;
    int code = enter_offered(handle, REASONS, &device);
    if (!code) *out = device->reasons;
    return code;
}

/* A GPM sample is a counter of the card: how many were taken before it. */
typedef struct { Device of; int taken; } GpmSample;
typedef struct { unsigned id; int code; double value; const char *names[3]; } GpmMetric;
typedef struct { unsigned version, count; GpmSample *first, *second; GpmMetric metric[]; }
    GpmRequest;

int nvmlGpmQueryDeviceSupport(void *handle, unsigned support[2]) {
    Device *device;
    int code = enter_device(handle, FIGURES, &device);
    if (!code) support[1] = device->has[GPM];
    return code ? code : support[0] == 1 ? OK : 25;
}

int nvmlGpmSampleAlloc(GpmSample **out) {
    *out = calloc(1, sizeof **out);
    return gpm_samples++, OK;
}

int nvmlGpmSampleFree(GpmSample *sample) {
    free(sample);
    return gpm_samples--, OK;
}

int nvmlGpmSampleGet(void *handle, GpmSample *sample) {
    Device *device;
    int code = enter_offered(handle, GPM, &device);
    if (code) return code;
    sample->of = *device;
    sample->taken = calls[device - devices][GPM];
    return OK;
}

int nvmlGpmMetricsGet(GpmRequest *request) {
    if (request->version != 1) return 25;
    /* means are over the time between two looks that followed one another */
    if (request->first->taken + 1 != request->second->taken) return INVALID;
    for (unsigned i = 0; i < request->count; i++) {
        request->metric[i].value = request->second->of.gpm;
        request->metric[i].code = request->metric[i].id == 2 ? OK : UNSUPPORTED;
    }
    return OK;
}
