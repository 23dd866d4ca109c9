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
 *   computemode 3                     compute mode (default 0)
 *   samples 1000000 50 1200000 80     buffer: microseconds and value, in this order
 *   samples                           a buffer that holds nothing
 *   curve 100000 0 100                buffer: one value each 100,000 us of the wall
 *                                     clock, cycled, 120 of them kept
 *   sampletype 0                      type of the buffer's values (default 1)
 *   samplerows 4000000000             rows that the buffer claims to have
 *   clocks 1980 2619                  MHz: SM, memory
 *   temperature 61                    degrees Celsius
 *   power 350000                      mW
 *   reasons 0x44                      clocks event reasons
 *   pcie 1000 2000                    kB/s: out, in
 *   running                           tells processes; then, of each, on its line:
 *   compute 4711 300                  pid, bytes; graphics likewise
 *   share 4711 1500000 60             pid, stamp in microseconds, per cent of SMs
 *   gpm 50 25.5 10 nan 1 2            SM, occupancy, tensor, DRAM per cent; PCIe out
 *                                     and in, MiB/s
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
#include <sys/time.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6,
       SHORT = 7, UNKNOWN = 999 };
enum { UTIL, MEMORY, NAME, UUID, SAMPLES, CLOCKS, TEMPERATURE, POWER, REASONS, PCIE,
       RUNNING, SHARE, GPM, FIGURES };
enum { DEVICES = 16, VALUES = 256, KEPT = 120, PROCESSES = 16, TEXT = 96, LINE = 8192,
       GPM_METRICS = 6 };

static const char *const figure_names[FIGURES] = {
    "util", "memory", "name", "uuid", "samples", "clocks", "temperature", "power",
    "reasons", "pcie", "running", "share", "gpm"};

typedef unsigned long long u64;
typedef struct { u64 stamp; long value; } Entry;
typedef struct { unsigned pid; u64 bytes; int graphics; } Process;
typedef struct { unsigned pid; u64 stamp; unsigned share; } Share;

typedef struct {
    char uuid[TEXT], name[TEXT], bus[TEXT];
    u64 total, used;
    int has_memory, utils, mig, compute_mode;
    long util[VALUES];
    int has[FIGURES], entries, curves, processes, shares;
    Entry entry[VALUES];
    long curve[VALUES];
    u64 curve_us;
    unsigned sample_type, sample_rows, clock[2], temperature, power, pcie[2];
    u64 reasons;
    Process process[PROCESSES];
    Share share[PROCESSES];
    double gpm[GPM_METRICS];
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
    int count;
    if (!strcmp(word, "gpm")) {
        double *gpm = device->gpm;
        device->has[GPM] = 1;
        return sscanf(rest, "%lf %lf %lf %lf %lf %lf", gpm, gpm + 1, gpm + 2, gpm + 3,
                      gpm + 4, gpm + 5) == GPM_METRICS;
    }
    if ((count = parse_numbers(rest, numbers)) < 0) return 0;
    if (!strcmp(word, "samples")) {
        device->has[SAMPLES] = 1;
        for (int i = 0; i + 1 < count; i += 2)
            device->entry[device->entries++] = (Entry){numbers[i], numbers[i + 1]};
        return count % 2 == 0;
    }
    if (!strcmp(word, "curve")) {
        device->has[SAMPLES] = 1;
        device->curve_us = numbers[0];
        device->curves = count - 1;
        memcpy(device->curve, numbers + 1, sizeof numbers - sizeof *numbers);
        return count > 1 && numbers[0] > 0;
    }
    if (!strcmp(word, "sampletype")) return device->sample_type = numbers[0], count == 1;
    if (!strcmp(word, "samplerows")) return device->sample_rows = numbers[0], count == 1;
    if (!strcmp(word, "running")) return device->has[RUNNING] = 1, count == 0;
    if (!strcmp(word, "compute") || !strcmp(word, "graphics")) {
        if (device->processes == PROCESSES) return 0;
        device->process[device->processes++] =
            (Process){numbers[0], numbers[1], *word == 'g'};
        return count == 2;
    }
    if (!strcmp(word, "share")) {
        device->has[SHARE] = 1;
        if (count == 0) return 1;
        if (device->shares == PROCESSES) return 0;
        device->share[device->shares++] = (Share){numbers[0], numbers[1], numbers[2]};
        return count == 3;
    }
    for (int i = CLOCKS; i <= PCIE; i++)
        if (!strcmp(word, figure_names[i])) device->has[i] = 1;
    device->clock[0] = !strcmp(word, "clocks") ? numbers[0] : device->clock[0];
    device->clock[1] = !strcmp(word, "clocks") ? numbers[1] : device->clock[1];
    device->pcie[0] = !strcmp(word, "pcie") ? numbers[0] : device->pcie[0];
    device->pcie[1] = !strcmp(word, "pcie") ? numbers[1] : device->pcie[1];
    if (!strcmp(word, "clocks") || !strcmp(word, "pcie")) return count == 2;
    if (!strcmp(word, "temperature")) return device->temperature = numbers[0], count == 1;
    if (!strcmp(word, "power")) return device->power = numbers[0], count == 1;
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
        device->sample_type = 1;
        return snprintf(device->uuid, TEXT, "%s", rest) >= 0;
    }
    if (!device) return 0;
    if (!strcmp(word, "name")) return snprintf(device->name, TEXT, "%s", rest) >= 0;
    if (!strcmp(word, "bus")) return snprintf(device->bus, TEXT, "%s", rest) >= 0;
    if (!strcmp(word, "mig")) return sscanf(rest, "%d", &device->mig) == 1;
    if (!strcmp(word, "computemode"))
        return sscanf(rest, "%d", &device->compute_mode) == 1;
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

int nvmlDeviceGetComputeMode(void *handle, unsigned *mode) {
    Device *device;
    int code = enter_device(handle, FIGURES, &device);
    if (!code) *mode = (unsigned)device->compute_mode;
    return code;
}

/* As on real cards: as many places as there can be slices, some of them empty. */
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
    Device *device;
    int code = enter_device(handle, FIGURES, &device);
    if (!code) *count = device->mig < 0 ? 0 : 7;
    return code;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned wanted, void **slice) {
    Device *device;
    int code = enter_device(handle, FIGURES, &device);
    if (code) return code;
    int index = (int)(device - devices) + 1 + (int)wanted;
    for (int i = (int)(device - devices) + 1; i <= index; i++)
        if (i >= device_count || !is_slice(&devices[i])) return NOT_FOUND;
    return *slice = to_handle(index), OK;
}

/* What a card may lack; older drivers lack the symbols too. */

static int enter_offered(void *handle, int figure, Device **device) {
    int code = enter_device(handle, figure, device);
    return code ? code : (*device)->has[figure] ? OK : UNSUPPORTED;
}

typedef struct { u64 stamp; union { double real; unsigned whole; u64 wide; } value; }
    Sample;

int nvmlDeviceGetSamples(void *handle, unsigned type, u64 last, unsigned *value_type,
                         unsigned *count, Sample *out) {
    Device *device;
    int code = enter_offered(handle, SAMPLES, &device), found = 0;
    if (code) return code;
    if (type != 1) return INVALID;
    *value_type = device->sample_type;
    if (!out) {
        *count = device->sample_rows ? device->sample_rows : VALUES;
        return OK;
    }
    if (device->curves) {
        struct timeval now;
        gettimeofday(&now, NULL);
        u64 newest = (now.tv_sec * 1000000ull + now.tv_usec) / device->curve_us;
        for (u64 i = newest - KEPT; i < newest; i++)
            device->entry[device->entries++] = (Entry){
                (i + 1) * device->curve_us, device->curve[i % device->curves]};
    }
    for (int i = 0; i < device->entries && found < (int)*count; i++)
        if (device->entry[i].stamp > last) {
            out[found].stamp = device->entry[i].stamp;
            out[found].value.wide = 0;
            out[found++].value.whole = (unsigned)device->entry[i].value;
        }
    *count = found;
    return found ? OK : NOT_FOUND;
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

int nvmlDeviceGetPowerUsage(void *handle, unsigned *out) {
    Device *device;
    int code = enter_offered(handle, POWER, &device);
    if (!code) *out = device->power;
    return code;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, u64 *out) {
    Device *device;
    int code = enter_offered(handle, REASONS, &device);
    if (!code) *out = device->reasons;
    return code;
}

int nvmlDeviceGetCurrentClocksEventReasons(void *handle, u64 *out) {
    return nvmlDeviceGetCurrentClocksThrottleReasons(handle, out);
}

int nvmlDeviceGetPcieThroughput(void *handle, unsigned counter, unsigned *out) {
    Device *device;
    int code = enter_offered(handle, PCIE, &device);
    if (code || counter > 1) return code ? code : INVALID;
    *out = device->pcie[counter];
    return OK;
}

typedef struct { unsigned pid; u64 bytes; unsigned gpu_instance, compute_instance; }
    ProcessRow;

static int give_processes(void *handle, int graphics, unsigned *count, ProcessRow *out) {
    Device *device;
    int code = enter_offered(handle, RUNNING, &device);
    unsigned found = 0;
    if (code) return code;
    for (int i = 0; i < device->processes; i++) {
        Process *process = &device->process[i];
        if (process->graphics != graphics) continue;
        if (out && found < *count)
            out[found] = (ProcessRow){process->pid, process->bytes, -1, -1};
        found++;
    }
    code = found > *count ? SHORT : OK;
    *count = found;
    return code;
}

int nvmlDeviceGetComputeRunningProcesses_v2(void *h, unsigned *count, ProcessRow *out) {
    return give_processes(h, 0, count, out);
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *count, ProcessRow *out) {
    return give_processes(h, 0, count, out);
}

int nvmlDeviceGetGraphicsRunningProcesses_v2(void *h, unsigned *count, ProcessRow *out) {
    return give_processes(h, 1, count, out);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *h, unsigned *count, ProcessRow *out) {
    return give_processes(h, 1, count, out);
}

typedef struct { unsigned pid; u64 stamp; unsigned sm, memory, encoder, decoder; }
    ShareRow;

int nvmlDeviceGetProcessUtilization(void *handle, ShareRow *out, unsigned *count,
                                    u64 last) {
    Device *device;
    int code = enter_offered(handle, SHARE, &device);
    unsigned found = 0;
    if (code) return code;
    for (int i = 0; i < device->shares; i++) {
        Share *share = &device->share[i];
        if (share->stamp <= last) continue;
        if (out && found < *count)
            out[found] = (ShareRow){share->pid, share->stamp, share->share, 0, 0, 0};
        found++;
    }
    if (!found) return *count = 0, NOT_FOUND;
    code = !out || found > *count ? SHORT : OK;
    *count = found;
    return code;
}

/* A GPM sample is a counter of the card: how many were taken before it. */
typedef struct { Device of; int taken; } GpmSample;
typedef struct { unsigned id; int code; double value; const char *names[3]; } GpmMetric;
typedef struct { unsigned version, count; GpmSample *first, *second; GpmMetric metric[]; }
    GpmRequest;
static const unsigned gpm_ids[GPM_METRICS] = {2, 3, 5, 10, 20, 21};

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
        request->metric[i].code = UNSUPPORTED;
        for (int j = 0; j < GPM_METRICS; j++)
            if (request->metric[i].id == gpm_ids[j]) {
                request->metric[i].value = request->second->of.gpm[j];
                request->metric[i].code = OK;
            }
    }
    return OK;
}
