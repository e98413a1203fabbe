// Kernels that write, publish and read objects in GPU memory. docs/reference/gpu-kernels.md says
// which word lies where and why; gpu/kernels/README.md how to compile this file.
//
// Words in host memory are shared with processors and with kernels of other processes: their scope
// is sys. The counter of finished blocks belongs to one launch: its scope is gpu. No kernel makes
// an atomic read-modify-write of host memory.

typedef unsigned int u32;
typedef unsigned long long u64;

// The header of an object, store/src/layout.rs. `pages` is n_pages and page_size.
struct Header {
  u64 key_hash, pages, payload_base, bytes_total, key_check, publish, last_access, owner;
};
struct Descriptor {
  u64 dst, src, size;
};
struct LogPut {
  u64 src, bytes, claim_bytes, key_hash, key_check, pages;
};
struct LogResult {
  u64 position, status;
};
struct __align__(16) Vec {
  u32 x, y, z, w;
};

#define WRITING 1ull
#define READY 2ull
#define DEAD 3ull
#define LIVE 1ull

static __device__ __forceinline__ u64 ld_acquire_sys(const u64 *p) {
  u64 v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}

static __device__ __forceinline__ u64 ld_relaxed_sys(const u64 *p) {
  u64 v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}

static __device__ __forceinline__ void st_relaxed_sys(u64 *p, u64 v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

static __device__ __forceinline__ void st_release_sys(u64 *p, u64 v) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

static __device__ __forceinline__ u64 add_relaxed_sys(u64 *p, u64 n) {
  u64 v;
  asm volatile("atom.relaxed.sys.global.add.u64 %0, [%1], %2;"
               : "=l"(v) : "l"(p), "l"(n) : "memory");
  return v;
}

// Counts this block as finished. What it stored before is known to the block that counts last.
static __device__ __forceinline__ u64 count_block(u64 *p, u64 n) {
  u64 v;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(v) : "l"(p), "l"(n) : "memory");
  return v;
}

// An address from memory, which the compiler must know to be global to use ld.global.
template <typename T> static __device__ __forceinline__ T *global(u64 address) {
  return (T *)__cvta_global_to_generic((size_t)address);
}

// All threads of a block copy `size` bytes between addresses that are multiples of 16.
static __device__ __forceinline__ void copy(u64 to, u64 from, u64 size) {
  Vec *dst = global<Vec>(to);
  const Vec *src = global<const Vec>(from);
  u64 n = size / 16, k = threadIdx.x, s = blockDim.x;
  for (; k + 3 * s < n; k += 4 * s) {
    Vec a = src[k], b = src[k + s], c = src[k + 2 * s], d = src[k + 3 * s];
    dst[k] = a;
    dst[k + s] = b;
    dst[k + 2 * s] = c;
    dst[k + 3 * s] = d;
  }
  for (; k < n; k += s) dst[k] = src[k];
  for (u64 tail = n * 16 + threadIdx.x; tail < size; tail += s) {
    global<unsigned char>(to)[tail] = global<const unsigned char>(from)[tail];
  }
}

// By one thread of the last block: READY, if the word is still what the producer expects. Between
// the check and the store nobody else writes it: a publish word has one writer at a time.
static __device__ __forceinline__ void publish_word(u64 *publish, u64 expect, u64 ready,
                                                    u64 *found) {
  u64 old = ld_acquire_sys(publish);
  if (old == expect) st_release_sys(publish, ready);
  *found = old;
}

extern "C" __global__ void __launch_bounds__(512)
nkv_gather_publish(const Descriptor *__restrict__ d, u32 n, u64 *done, u64 *publish, u64 expect,
                   u64 ready, u64 *found) {
  for (u32 i = blockIdx.x; i < n; i += gridDim.x) copy(d[i].dst, d[i].src, d[i].size);
  __syncthreads();
  if (threadIdx.x == 0 && count_block(done, 1) == gridDim.x - 1) {
    *done = 0;
    publish_word(publish, expect, ready, found);
  }
}

#define VALID 1u
#define NOT_READY 2u
#define GONE 3u
#define CHANGED 4u

// What the last block must know of all others, in one counter: blocks, those that found the object
// not ready, and those that found it gone.
#define COUNT_NOT_READY (1ull << 21)
#define COUNT_GONE (1ull << 42)
#define COUNT_MASK (COUNT_NOT_READY - 1)

struct Wanted {
  u64 key_hash, key_check, epoch, payload_base, bytes;
};

// Whether a header whose publish word was READY is of the wanted object and served.
static __device__ __forceinline__ bool served(const Header *h, const Wanted &w) {
  u64 owner = ld_acquire_sys(&h->owner);
  if (!(owner & LIVE) || owner >> 32 != w.epoch) return false;
  return ld_acquire_sys(&h->key_hash) == w.key_hash &&
         ld_acquire_sys(&h->key_check) == w.key_check &&
         ld_acquire_sys(&h->payload_base) == w.payload_base &&
         ld_acquire_sys(&h->bytes_total) == w.bytes;
}

// By one thread: waits for READY.
static __device__ __forceinline__ u32 await(const Header *h, const Wanted &w, u64 spins) {
  u64 ready = w.epoch << 32 | READY;
  for (u64 s = 0; s < spins; s++) {
    u64 publish = ld_acquire_sys(&h->publish);
    if (publish == ready) return served(h, w) ? VALID : GONE;
    // A later epoch, or given up by its producer.
    if (publish > ready) return GONE;
  }
  return NOT_READY;
}

extern "C" __global__ void __launch_bounds__(512)
nkv_wait_scatter(const Header *header, u64 key_hash, u64 key_check, u64 epoch, u64 payload_base,
                 u64 bytes, u64 spins, const Descriptor *__restrict__ d, u32 n, u64 *done,
                 u64 *result) {
  __shared__ u32 verdict;
  Wanted wanted = {key_hash, key_check, epoch, payload_base, bytes};
  if (threadIdx.x == 0) verdict = await(header, wanted, spins);
  __syncthreads();
  if (verdict == VALID) {
    for (u32 i = blockIdx.x; i < n; i += gridDim.x) copy(d[i].dst, d[i].src, d[i].size);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  u64 mine = 1;
  if (verdict == NOT_READY) mine += COUNT_NOT_READY;
  if (verdict == GONE) mine += COUNT_GONE;
  u64 all = count_block(done, mine) + mine;
  if ((all & COUNT_MASK) != gridDim.x) return;
  *done = 0;
  u32 outcome = VALID;
  if (all >= COUNT_GONE) {
    outcome = GONE;
  } else if (all >= COUNT_NOT_READY) {
    outcome = NOT_READY;
  } else {
    // All payload was read before the header is read again.
    asm volatile("fence.acq_rel.sys;" ::: "memory");
    u64 publish = ld_acquire_sys(&header->publish);
    if (publish != (epoch << 32 | READY) || !served(header, wanted)) outcome = CHANGED;
  }
  *result = outcome;
}

#define STORED 1u
#define FULL 2u
#define WAITED 3u
#define WRAPPED 4u
#define MAX_CLAIMS 4
#define UNIT 4096ull

struct Log {
  u64 *bump;
  const u64 *limit;
  Header *headers;
  u64 offset, bytes, spins;
};

static __device__ __forceinline__ void fields(Header *h, u64 hash, u64 check, u64 pages, u64 base,
                                              u64 bytes) {
  st_relaxed_sys(&h->key_hash, hash);
  st_relaxed_sys(&h->pages, pages);
  st_relaxed_sys(&h->payload_base, base);
  st_relaxed_sys(&h->bytes_total, bytes);
  st_relaxed_sys(&h->key_check, check);
}

// Without overflow, also where another process overwrote a word.
static __device__ __forceinline__ bool fits(u64 p, u64 n, u64 limit) {
  return p <= limit && n <= limit - p;
}

// By one thread: claims n bytes, skips what crosses the end, and marks the header as WRITING.
static __device__ __forceinline__ u32 claim(const Log &log, const LogPut *put, u64 *position) {
  u64 n = put->claim_bytes;
#pragma unroll 1
  for (int i = 0; i < MAX_CLAIMS; i++) {
    u64 limit = ld_acquire_sys(log.limit), bump = ld_relaxed_sys(log.bump);
    if (bump % UNIT || !fits(bump, n, limit)) return FULL;
    u64 p = add_relaxed_sys(log.bump, n);
    *position = p;
    for (u64 s = 0; !fits(p, n, limit); s++) {
      if (s == log.spins) return WAITED;
      limit = ld_acquire_sys(log.limit);
    }
    u64 at = p % log.bytes, epoch = (p / log.bytes + 1) << 32;
    Header *h = log.headers + at / UNIT;
    if (at + n <= log.bytes) {
      fields(h, put->key_hash, put->key_check, put->pages, log.offset + at, put->bytes);
      st_relaxed_sys(&h->publish, epoch | WRITING);
      return STORED;
    }
    fields(h, 0, 0, 0, log.offset + at, n);
    st_release_sys(&h->publish, epoch | DEAD);
  }
  return WRAPPED;
}

extern "C" __global__ void __launch_bounds__(512)
nkv_log_put(const LogPut *__restrict__ puts, u32 n, u64 *bump, const u64 *limit, Header *headers,
            u64 payload, u64 offset, u64 log_bytes, u64 spins, LogResult *results) {
  __shared__ u64 position;
  __shared__ u32 status;
  Log log = {bump, limit, headers, offset, log_bytes, spins};
  for (u32 i = blockIdx.x; i < n; i += gridDim.x) {
    if (threadIdx.x == 0) {
      u64 p = 0;
      status = claim(log, puts + i, &p);
      position = p;
    }
    __syncthreads();
    u64 p = position;
    u32 s = status;
    if (s == STORED) copy(payload + p % log_bytes, puts[i].src, puts[i].bytes);
    __syncthreads();
    if (threadIdx.x == 0) {
      if (s == STORED) {
        Header *h = headers + p % log_bytes / UNIT;
        st_release_sys(&h->publish, (p / log_bytes + 1) << 32 | READY);
      }
      results[i].position = p;
      results[i].status = s;
    }
  }
}

#if __CUDA_ARCH__ >= 900
// The bulk copy engine: global to shared to global memory, driven by one thread of each block.
// Sizes are multiples of 16.
#define CHUNK 32768u
#define STAGES 3

extern __shared__ __align__(128) unsigned char stage[];

static __device__ __forceinline__ void bulk_in(u32 to, u64 from, u32 bytes, u32 bar, u32 phase) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
               "[%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
  u32 ok;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                 "selp.u32 %0, 1, 0, p; }" : "=r"(ok) : "r"(bar), "r"(phase) : "memory");
  } while (!ok);
}

static __device__ __forceinline__ void bulk_out(u64 to, u32 from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

extern "C" __global__ void
nkv_gather_bulk(const Descriptor *__restrict__ d, u32 n, u64 *done, u64 *publish, u64 expect,
                u64 ready, u64 *found) {
  __shared__ __align__(8) u64 bars[STAGES];
  if (threadIdx.x != 0) return;
  u32 bar0 = (u32)__cvta_generic_to_shared(bars), stage0 = (u32)__cvta_generic_to_shared(stage);
  for (int i = 0; i < STAGES; i++) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar0 + 8 * i) : "memory");
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  u32 c = 0;
  for (u32 i = blockIdx.x; i < n; i += gridDim.x) {
    for (u64 o = 0; o < d[i].size; o += CHUNK, c++) {
      u64 left = d[i].size - o;
      u32 bytes = left < CHUNK ? (u32)left : CHUNK, s = c % STAGES;
      // The stage may be reused once the copy that leaves it has read it.
      asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(STAGES - 1) : "memory");
      bulk_in(stage0 + s * CHUNK, d[i].src + o, bytes, bar0 + 8 * s, (c / STAGES) & 1);
      bulk_out(d[i].dst + o, stage0 + s * CHUNK, bytes);
    }
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  // The engine's writes come before the release by ordinary instructions.
  asm volatile("fence.proxy.async.global;" ::: "memory");
  if (count_block(done, 1) == gridDim.x - 1) {
    *done = 0;
    publish_word(publish, expect, ready, found);
  }
}
#endif
