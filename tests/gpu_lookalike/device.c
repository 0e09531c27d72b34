/* Devices of type GPU for TensorFlow, which are memory of the host that the host must not touch.

   A plug-in by TensorFlow's StreamExecutor C interface. Each device has its memory mapped twice:
   once without access, at the addresses that TensorFlow has, and once with access, which only the
   copies of this file use. A kernel of the host that is given a GPU's tensor crashes, as it does on
   a real GPU. There are no kernels for computing: TensorFlow runs those operations on the host, and
   copies their operands. So this shows where values are, and when they cross, and nothing else.

   LOOKALIKE_GPUS    the number of devices; none without it. CUDA_VISIBLE_DEVICES hides some.
   LOOKALIKE_REPORT  a file to which a process appends its number of copies when it ends. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"

enum { MOST_DEVICES = 8, PAGE = 4096 };
static const uint64_t DEVICE_BYTES = 2ull << 30;

/* What TensorFlow wants by a pointer; work is done at once, so there is nothing to keep. */
struct SP_Stream_st { char unused; };
struct SP_Event_st { char unused; };
struct SP_Timer_st { char unused; };

typedef struct {
  char* hidden;  /* where TensorFlow believes it to be */
  char* real;    /* where it can be read and written */
  uint64_t used;
} Memory;

static Memory memories[MOST_DEVICES];
static long copies_to_device, copies_to_host;

static char* find_real(const void* address) {
  const char* sought = address;
  for (int n = 0; n < MOST_DEVICES; n++) {
    const Memory* memory = &memories[n];
    if (memory->hidden && sought >= memory->hidden && sought < memory->hidden + DEVICE_BYTES)
      return memory->real + (sought - memory->hidden);
  }
  return NULL;
}

static char* on_device(const void* address) {
  char* real = find_real(address);
  if (real) return real;
  fprintf(stderr, "lookalike: %p is not on a device, where a copy needs it to be\n", address);
  abort();
}

static void* on_host(const void* address) {
  if (!find_real(address)) return (void*)address;
  fprintf(stderr, "lookalike: %p is on a device, where a copy needs it on the host\n", address);
  abort();
}

/* Accesses by the host.

   AssignAddVariableOp and AssignSubVariableOp are registered for any device, and compute on the host
   all the same. What other plug-ins do about it, to register a kernel by TF_AssignUpdateVariable,
   is not possible with the wheel of TensorFlow 2.21, which does not export that function. So these
   two may touch a device's memory until the next copy hides it again. */

enum { MOST_FRAMES = 64 };
static const char PERMITTED[] = "AssignUpdateVariableOp";
static volatile int is_open;

static void show_all(int protection) {
  for (int n = 0; n < MOST_DEVICES; n++)
    if (memories[n].hidden) mprotect(memories[n].hidden, DEVICE_BYTES, protection);
}

static void hide_again(void) {
  if (__sync_lock_test_and_set(&is_open, 0)) show_all(PROT_NONE);
}

static void on_fault(int number, siginfo_t* fault, void* context) {
  if (find_real(fault->si_addr)) {
    void* frames[MOST_FRAMES];
    int count = backtrace(frames, MOST_FRAMES);
    for (int n = 0; n < count; n++) {
      Dl_info frame;
      if (dladdr(frames[n], &frame) && frame.dli_sname && strstr(frame.dli_sname, PERMITTED)) {
        is_open = 1;
        show_all(PROT_READ | PROT_WRITE);
        return;
      }
    }
    fprintf(stderr, "lookalike: the host touches a device's memory at %p:\n", fault->si_addr);
    backtrace_symbols_fd(frames, count, STDERR_FILENO);
  }
  signal(SIGSEGV, SIG_DFL); /* the instruction is repeated, and ends the process */
}

static void watch_faults(void) {
  void* frame;
  backtrace(&frame, 1); /* loads what it needs, which a signal handler could not */
  struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
  sigaction(SIGSEGV, &action, NULL);
}

static void succeed(TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

/* Memory. It is never reused: TensorFlow's own allocator divides what it gets. */

static void map_memory(Memory* memory) {
  if (memory->hidden) return;
  int file = memfd_create("lookalike", 0);
  if (file < 0 || ftruncate(file, DEVICE_BYTES)) abort();
  int flags = MAP_SHARED | MAP_NORESERVE;
  memory->real = mmap(NULL, DEVICE_BYTES, PROT_READ | PROT_WRITE, flags, file, 0);
  memory->hidden = mmap(NULL, DEVICE_BYTES, PROT_NONE, flags, file, 0);
  if (memory->real == MAP_FAILED || memory->hidden == MAP_FAILED) abort();
  close(file);
}

static void allocate(const SP_Device* device, uint64_t size, int64_t space,
                     SP_DeviceMemoryBase* block) {
  Memory* memory = &memories[device->ordinal];
  uint64_t rounded = (size + PAGE - 1) / PAGE * PAGE;
  uint64_t start = __sync_fetch_and_add(&memory->used, rounded);
  int fits = start + rounded <= DEVICE_BYTES;
  block->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
  block->opaque = fits ? memory->hidden + start : NULL;
  block->size = fits ? size : 0;
}

static void deallocate(const SP_Device* device, SP_DeviceMemoryBase* block) {}

static void* allocate_on_host(const SP_Device* device, uint64_t size) {
  void* block = NULL;
  return posix_memalign(&block, 64, size ? size : 64) ? NULL : block;
}

static void deallocate_on_host(const SP_Device* device, void* block) { free(block); }

static TF_Bool allocator_stats(const SP_Device* device, SP_AllocatorStats* stats) { return 0; }

static TF_Bool memory_usage(const SP_Device* device, int64_t* available, int64_t* total) {
  *total = DEVICE_BYTES;
  *available = DEVICE_BYTES - memories[device->ordinal].used;
  return 1;
}

/* Copies. */

static void copy_to_host(const SP_Device* device, void* target, const SP_DeviceMemoryBase* source,
                         uint64_t size, TF_Status* status) {
  hide_again();
  if (size) memcpy(on_host(target), on_device(source->opaque), size);
  __sync_fetch_and_add(&copies_to_host, 1);
  succeed(status);
}

static void copy_to_device(const SP_Device* device, SP_DeviceMemoryBase* target,
                           const void* source, uint64_t size, TF_Status* status) {
  hide_again();
  if (size) memcpy(on_device(target->opaque), on_host(source), size);
  __sync_fetch_and_add(&copies_to_device, 1);
  succeed(status);
}

static void copy_between(const SP_Device* device, SP_DeviceMemoryBase* target,
                         const SP_DeviceMemoryBase* source, uint64_t size, TF_Status* status) {
  if (size) memmove(on_device(target->opaque), on_device(source->opaque), size);
  succeed(status);
}

static void queue_to_host(const SP_Device* device, SP_Stream stream, void* target,
                          const SP_DeviceMemoryBase* source, uint64_t size, TF_Status* status) {
  copy_to_host(device, target, source, size, status);
}

static void queue_to_device(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* target,
                            const void* source, uint64_t size, TF_Status* status) {
  copy_to_device(device, target, source, size, status);
}

static void queue_between(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* target,
                          const SP_DeviceMemoryBase* source, uint64_t size, TF_Status* status) {
  copy_between(device, target, source, size, status);
}

static void fill_bytes(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* target,
                       uint8_t value, uint64_t size, TF_Status* status) {
  if (size) memset(on_device(target->opaque), value, size);
  succeed(status);
}

static void fill_zeros(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* target,
                       uint64_t size, TF_Status* status) {
  fill_bytes(device, stream, target, 0, size, status);
}

static void fill_words(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* target,
                       uint32_t value, uint64_t size, TF_Status* status) {
  uint32_t* words = (uint32_t*)on_device(target->opaque);
  for (uint64_t n = 0; n < size / sizeof *words; n++) words[n] = value;
  succeed(status);
}

/* Streams and events. */

static void create_stream(const SP_Device* device, SP_Stream* stream, TF_Status* status) {
  *stream = calloc(1, sizeof **stream);
  succeed(status);
}
static void destroy_stream(const SP_Device* device, SP_Stream stream) { free(stream); }
static void order_streams(const SP_Device* device, SP_Stream first, SP_Stream second,
                          TF_Status* status) {
  succeed(status);
}
static void stream_status(const SP_Device* device, SP_Stream stream, TF_Status* status) {
  succeed(status);
}
static void create_event(const SP_Device* device, SP_Event* event, TF_Status* status) {
  *event = calloc(1, sizeof **event);
  succeed(status);
}
static void destroy_event(const SP_Device* device, SP_Event event) { free(event); }
static SE_EventStatus event_status(const SP_Device* device, SP_Event event) {
  return SE_EVENT_COMPLETE;
}
static void record_event(const SP_Device* device, SP_Stream stream, SP_Event event,
                         TF_Status* status) {
  succeed(status);
}
static void wait_for_event(const SP_Device* device, SP_Stream stream, SP_Event event,
                           TF_Status* status) {
  succeed(status);
}
static void block_for_event(const SP_Device* device, SP_Event event, TF_Status* status) {
  succeed(status);
}
static void block_until_done(const SP_Device* device, SP_Stream stream, TF_Status* status) {
  succeed(status);
}
static void synchronize(const SP_Device* device, TF_Status* status) { succeed(status); }
static TF_Bool call_host(const SP_Device* device, SP_Stream stream, SE_StatusCallbackFn function,
                         void* argument) {
  TF_Status* status = TF_NewStatus();
  function(argument, status);
  TF_DeleteStatus(status);
  return 1;
}
static void create_timer(const SP_Device* device, SP_Timer* timer, TF_Status* status) {
  *timer = calloc(1, sizeof **timer);
  succeed(status);
}
static void destroy_timer(const SP_Device* device, SP_Timer timer) { free(timer); }
static void switch_timer(const SP_Device* device, SP_Stream stream, SP_Timer timer,
                         TF_Status* status) {
  succeed(status);
}
static uint64_t nanoseconds(SP_Timer timer) { return 0; }

/* The platform. */

static void create_executor(const SP_Platform* platform, SE_CreateStreamExecutorParams* params,
                            TF_Status* status) {
  *params->stream_executor = (SP_StreamExecutor){
      .struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE,
      .allocate = allocate,
      .deallocate = deallocate,
      .host_memory_allocate = allocate_on_host,
      .host_memory_deallocate = deallocate_on_host,
      .get_allocator_stats = allocator_stats,
      .device_memory_usage = memory_usage,
      .create_stream = create_stream,
      .destroy_stream = destroy_stream,
      .create_stream_dependency = order_streams,
      .get_stream_status = stream_status,
      .create_event = create_event,
      .destroy_event = destroy_event,
      .get_event_status = event_status,
      .record_event = record_event,
      .wait_for_event = wait_for_event,
      .create_timer = create_timer,
      .destroy_timer = destroy_timer,
      .start_timer = switch_timer,
      .stop_timer = switch_timer,
      .memcpy_dtoh = queue_to_host,
      .memcpy_htod = queue_to_device,
      .memcpy_dtod = queue_between,
      .sync_memcpy_dtoh = copy_to_host,
      .sync_memcpy_htod = copy_to_device,
      .sync_memcpy_dtod = copy_between,
      .block_host_for_event = block_for_event,
      .block_host_until_done = block_until_done,
      .synchronize_all_activity = synchronize,
      .mem_zero = fill_zeros,
      .memset = fill_bytes,
      .memset32 = fill_words,
      .host_callback = call_host,
  };
  succeed(status);
}
static void destroy_executor(const SP_Platform* platform, SP_StreamExecutor* executor) {}

static int count_listed(const char* list) {
  if (!*list || !strcmp(list, "-1")) return 0;
  int count = 1;
  for (; *list; list++) count += *list == ',';
  return count;
}

static void count_devices(const SP_Platform* platform, int* count, TF_Status* status) {
  const char* number = getenv("LOOKALIKE_GPUS");
  const char* visible = getenv("CUDA_VISIBLE_DEVICES");
  *count = number ? atoi(number) : 0;
  if (*count > MOST_DEVICES) *count = MOST_DEVICES;
  if (visible && count_listed(visible) < *count) *count = count_listed(visible);
  succeed(status);
}

static void create_device(const SP_Platform* platform, SE_CreateDeviceParams* params,
                          TF_Status* status) {
  params->device->struct_size = SP_DEVICE_STRUCT_SIZE;
  params->device->ordinal = params->ordinal;
  params->device->hardware_name = "lookalike";
  map_memory(&memories[params->ordinal]);
  succeed(status);
}
static void destroy_device(const SP_Platform* platform, SP_Device* device) {}
static void create_device_fns(const SP_Platform* platform, SE_CreateDeviceFnsParams* params,
                              TF_Status* status) {
  params->device_fns->struct_size = SP_DEVICE_FNS_STRUCT_SIZE;
  succeed(status);
}
static void destroy_device_fns(const SP_Platform* platform, SP_DeviceFns* functions) {}
static void create_timer_fns(const SP_Platform* platform, SP_TimerFns* functions,
                             TF_Status* status) {
  functions->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
  functions->nanoseconds = nanoseconds;
  succeed(status);
}
static void destroy_timer_fns(const SP_Platform* platform, SP_TimerFns* functions) {}
static void destroy_platform(SP_Platform* platform) {}
static void destroy_platform_fns(SP_PlatformFns* functions) {}

static void report(void) {
  const char* path = getenv("LOOKALIKE_REPORT");
  if (!path || !(copies_to_device || copies_to_host)) return;
  FILE* file = fopen(path, "a");
  if (!file) return;
  fprintf(file, "%ld %ld\n", copies_to_device, copies_to_host);
  fclose(file);
}

void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status* status) {
  params->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  params->platform->name = "LOOKALIKE";
  params->platform->type = "GPU";
  params->platform->use_bfc_allocator = 1;
  params->platform->force_memory_growth = 1;
  SP_PlatformFns* functions = params->platform_fns;
  functions->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  functions->get_device_count = count_devices;
  functions->create_device = create_device;
  functions->destroy_device = destroy_device;
  functions->create_device_fns = create_device_fns;
  functions->destroy_device_fns = destroy_device_fns;
  functions->create_stream_executor = create_executor;
  functions->destroy_stream_executor = destroy_executor;
  functions->create_timer_fns = create_timer_fns;
  functions->destroy_timer_fns = destroy_timer_fns;
  params->destroy_platform = destroy_platform;
  params->destroy_platform_fns = destroy_platform_fns;
  if (getenv("LOOKALIKE_GPUS")) watch_faults();
  atexit(report);
  succeed(status);
}

/* TensorFlow requires the function. */
void TF_InitKernel(void) {}
