//! Large copies between a segment and a caller's buffer, faster than glibc's memcpy, which streams
//! only from 192 MiB on.
//!
//! Into a segment: non-temporal stores. Another core reads the destination, so loading its lines
//! into this core's cache first wastes bandwidth: 0.6 to 0.75 of memcpy's time, measured until the
//! stores are complete, from 4 KiB on. The source is prefetched into the second-level cache: in the
//! first level it would occupy the line buffers that the stores need. An `sfence` before and one
//! after keep a READY word that is stored afterwards behind the data [I4].
//!
//! Out of a segment, on AMD: vector loads and stores, one line after the other. glibc uses the
//! string move for copies of 2 KiB and more there, which takes 5 to 20 times as long if the
//! destination lies a few bytes further within its page than the source, as an unaligned buffer
//! does.
//!
//! Out of a segment, elsewhere: four pages at a time with prefetch. If a segment lies in 4 KiB
//! pages the hardware prefetcher stops at page ends; four streams hide that: 0.75 to 0.85 of
//! memcpy's time on Intel, and up to 1.6 times it on AMD. For data that is already in the cache
//! this is only slower, so the time of the first page decides. The stores are ordinary ones,
//! because the caller is about to read the data.

/// Copies into a segment of at least this many bytes are streamed.
pub const STREAM_FROM_BYTES: usize = 4 << 10;
/// Copies out of a segment of at least this many bytes take several pages at a time.
pub const GATHER_FROM_BYTES: usize = 64 << 10;
/// Copies out of a segment of at least this many bytes do not use glibc on AMD.
#[cfg(target_arch = "x86_64")]
const VECTORS_FROM_BYTES: usize = 2 << 10;

/// Copies `len` bytes from `src` to `dst`.
///
/// # Safety
/// Both ranges must be valid for `len` bytes and must not overlap.
pub unsafe fn copy_in(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= STREAM_FROM_BYTES {
        // SAFETY: as promised by the caller; what each asks of the CPU was just detected, and every
        // x86-64 has SSE.
        return unsafe {
            if std::arch::is_x86_feature_detected!("avx512f") {
                x86::stream_512(src, dst, len);
            } else if std::arch::is_x86_feature_detected!("avx2") {
                x86::stream_256(src, dst, len);
            } else {
                x86::plain(src, dst, len);
            }
        };
    }
    // SAFETY: as promised by the caller.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
}

/// Copies `len` bytes from `src`, in a segment, to `dst`.
///
/// # Safety
/// Both ranges must be valid for `len` bytes and must not overlap. `src` may be written to by other
/// processes meanwhile: the copy is then stale, which [I7] detects.
pub unsafe fn copy_out(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= VECTORS_FROM_BYTES && *x86::IS_AMD {
        // SAFETY: as promised by the caller; what each asks of the CPU was just detected.
        return unsafe {
            if std::arch::is_x86_feature_detected!("avx512f") {
                x86::vectors_512(src, dst, len);
            } else if std::arch::is_x86_feature_detected!("avx2") {
                x86::vectors_256(src, dst, len);
            } else {
                std::ptr::copy_nonoverlapping(src, dst, len);
            }
        };
    }
    #[cfg(target_arch = "x86_64")]
    if len >= GATHER_FROM_BYTES && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: as promised by the caller; AVX2 was just detected, and there are more bytes than
        // a page.
        return unsafe { x86::page_then_rest(src, dst, len) };
    }
    // SAFETY: as promised by the caller.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
}

/// Prefetches `len` bytes into the cache.
#[inline]
pub fn prefetch(at: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    x86::fetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at, len);
    #[cfg(not(target_arch = "x86_64"))]
    let _no_such_instruction_here = (at, len);
}

/// Prefetches what [`copy_in`] will read first, while other work precedes it.
#[inline]
pub fn fetch_source(src: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if src.len() >= STREAM_FROM_BYTES {
        x86::fetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(src.as_ptr(), x86::AHEAD);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _no_such_instruction_here = src;
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __cpuid, __m256i, __m512i, _MM_HINT_T0, _MM_HINT_T1, _mm_prefetch, _mm_sfence,
        _mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_si256, _mm512_loadu_si512,
        _mm512_storeu_si512, _mm512_stream_si512, _rdtsc,
    };
    use std::sync::LazyLock;

    const VECTOR: usize = size_of::<__m256i>();
    const BLOCK: usize = 2 * LINE;
    /// Distance in bytes between the loads of a streamed copy and the prefetch of its source.
    pub const AHEAD: usize = 2 << 10;

    const LINE: usize = 64;
    const PAGE: usize = 4096;
    /// Cycles below which a page counts as cached. Copying a page from this core's first or second
    /// cache takes 100 to 200 cycles, from anywhere further away 700 and more.
    const CACHED_CYCLES: u64 = 450;
    /// Pages copied in parallel.
    const STREAMS: usize = 4;
    /// Distance in bytes between the loads of each page and the prefetch.
    const LINES_AHEAD: usize = 8 * LINE;

    /// Whether the CPU is made by AMD (AMD64 manual, volume 3: function 0).
    pub static IS_AMD: LazyLock<bool> = LazyLock::new(|| {
        let vendor = __cpuid(0);
        [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"AuthenticAMD"
    });

    /// Prefetches the lines of `len` bytes.
    #[inline(always)]
    pub fn fetch<const HINT: i32>(at: *const u8, len: usize) {
        for line in (0..len).step_by(LINE) {
            // SAFETY: a prefetch never faults, whatever the address.
            unsafe { _mm_prefetch::<HINT>(at.wrapping_add(line).cast()) };
        }
    }

    /// # Safety
    /// As [`super::copy_out`]; the CPU must have AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn vectors_256(src: *const u8, dst: *mut u8, len: usize) {
        let done = len - len % LINE;
        // SAFETY: as promised by the caller; every offset is below done <= len.
        unsafe {
            for at in (0..done).step_by(LINE) {
                let (s, d) = (src.add(at), dst.add(at));
                let a = _mm256_loadu_si256(s.cast());
                let b = _mm256_loadu_si256(s.add(VECTOR).cast());
                _mm256_storeu_si256(d.cast(), a);
                _mm256_storeu_si256(d.add(VECTOR).cast(), b);
            }
            std::ptr::copy_nonoverlapping(src.add(done), dst.add(done), len - done);
        }
    }

    /// # Safety
    /// As [`super::copy_out`]; the CPU must have AVX-512.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn vectors_512(src: *const u8, dst: *mut u8, len: usize) {
        let done = len - len % LINE;
        // SAFETY: as promised by the caller; every offset is below done <= len.
        unsafe {
            for at in (0..done).step_by(LINE) {
                let line = _mm512_loadu_si512(src.add(at).cast::<__m512i>());
                _mm512_storeu_si512(dst.add(at).cast::<__m512i>(), line);
            }
            std::ptr::copy_nonoverlapping(src.add(done), dst.add(done), len - done);
        }
    }

    /// Copies the first page, whose time decides how the rest is copied.
    ///
    /// # Safety
    /// As [`super::copy_out`], of more than a page; the CPU must have AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn page_then_rest(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: as promised by the caller; the counter may be read by everybody.
        unsafe {
            let began = _rdtsc();
            std::ptr::copy_nonoverlapping(src, dst, PAGE);
            // Whether it was in a cache of this core.
            let cached = _rdtsc().wrapping_sub(began) < CACHED_CYCLES;
            let (src, dst, len) = (src.add(PAGE), dst.add(PAGE), len - PAGE);
            if cached {
                std::ptr::copy_nonoverlapping(src, dst, len);
            } else {
                gather(src, dst, len);
            }
        }
    }

    /// # Safety
    /// As [`super::copy_out`]; the CPU must have AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn gather(src: *const u8, dst: *mut u8, len: usize) {
        let groups = len / (STREAMS * PAGE);
        let done = groups * STREAMS * PAGE;
        // SAFETY: every offset is below done <= len. The prefetches may point past the end: they
        // never fault.
        unsafe {
            for group in 0..groups {
                for line in (0..PAGE).step_by(LINE) {
                    for stream in 0..STREAMS {
                        let at = (group * STREAMS + stream) * PAGE + line;
                        let (s, d) = (src.add(at), dst.add(at));
                        _mm_prefetch::<_MM_HINT_T0>(s.wrapping_add(LINES_AHEAD).cast());
                        let a = _mm256_loadu_si256(s.cast());
                        let b = _mm256_loadu_si256(s.add(VECTOR).cast());
                        _mm256_storeu_si256(d.cast(), a);
                        _mm256_storeu_si256(d.add(VECTOR).cast(), b);
                    }
                }
            }
            std::ptr::copy_nonoverlapping(src.add(done), dst.add(done), len - done);
        }
    }

    /// Memcpy, which streams very large copies by itself, with the same fences as `stream`.
    ///
    /// # Safety
    /// As [`super::copy_in`].
    pub unsafe fn plain(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: as promised by the caller.
        unsafe {
            _mm_sfence();
            std::ptr::copy_nonoverlapping(src, dst, len);
            _mm_sfence();
        }
    }

    /// # Safety
    /// As [`super::copy_in`]; the CPU must have AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn stream_256(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: as promised by the caller. The stores of a block are aligned as `blocks` says.
        unsafe {
            blocks(src, dst, len, |s, d| {
                let a = _mm256_loadu_si256(s.cast());
                let b = _mm256_loadu_si256(s.add(VECTOR).cast());
                let c = _mm256_loadu_si256(s.add(2 * VECTOR).cast());
                let e = _mm256_loadu_si256(s.add(3 * VECTOR).cast());
                _mm256_stream_si256(d.cast(), a);
                _mm256_stream_si256(d.add(VECTOR).cast(), b);
                _mm256_stream_si256(d.add(2 * VECTOR).cast(), c);
                _mm256_stream_si256(d.add(3 * VECTOR).cast(), e);
            });
        }
    }

    /// # Safety
    /// As [`super::copy_in`]; the CPU must have AVX-512.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn stream_512(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: as promised by the caller. The stores of a block are aligned as `blocks` says.
        unsafe {
            blocks(src, dst, len, |s, d| {
                let a = _mm512_loadu_si512(s.cast::<__m512i>());
                let b = _mm512_loadu_si512(s.add(LINE).cast::<__m512i>());
                _mm512_stream_si512(d.cast(), a);
                _mm512_stream_si512(d.add(LINE).cast(), b);
            });
        }
    }

    /// Copies by blocks, each with `one(from, to)`; `to` is at the start of a line.
    ///
    /// # Safety
    /// As [`super::copy_in`].
    #[inline(always)]
    unsafe fn blocks(src: *const u8, dst: *mut u8, len: usize, one: impl Fn(*const u8, *mut u8)) {
        let head = dst.align_offset(LINE).min(len);
        let n = (len - head) / BLOCK;
        // SAFETY: head + n * BLOCK <= len; the prefetches may point past the end: they never fault.
        unsafe {
            fetch::<_MM_HINT_T1>(src, AHEAD);
            // Neither before earlier stores nor after later ones.
            _mm_sfence();
            std::ptr::copy_nonoverlapping(src, dst, head);
            let (mut s, mut d) = (src.add(head), dst.add(head));
            for _ in 0..n {
                _mm_prefetch::<_MM_HINT_T1>(s.wrapping_add(AHEAD).cast());
                _mm_prefetch::<_MM_HINT_T1>(s.wrapping_add(AHEAD + LINE).cast());
                one(s, d);
                s = s.add(BLOCK);
                d = d.add(BLOCK);
            }
            std::ptr::copy_nonoverlapping(s, d, len - head - n * BLOCK);
            _mm_sfence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_is_copied_exactly_and_nothing_beside_it() {
        let n = 3 * GATHER_FROM_BYTES;
        let src: Vec<u8> = (0..n).map(|i| (i * 7 + i / 251) as u8).collect();
        for (from, to) in [(0, 0), (1, 0), (0, 1), (13, 31), (64, 7)] {
            let (stream, gather) = (STREAM_FROM_BYTES, GATHER_FROM_BYTES);
            for len in [
                0,
                1,
                stream - 1,
                stream,
                stream + 1,
                gather - 1,
                gather,
                gather + 1,
                2 * gather + 97,
            ] {
                let mut dst = vec![0xEE; n];
                for copy in [copy_in, copy_out] {
                    dst.fill(0xEE);
                    // SAFETY: both ranges lie inside vectors of n bytes.
                    unsafe { copy(src[from..].as_ptr(), dst[to..].as_mut_ptr(), len) };
                    assert_eq!(&dst[to..to + len], &src[from..from + len]);
                    assert!(dst[..to].iter().chain(&dst[to + len..]).all(|b| *b == 0xEE));
                }
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_way_that_this_cpu_has_copies_exactly() {
        type Copy = unsafe fn(*const u8, *mut u8, usize);
        let has_avx2 = std::arch::is_x86_feature_detected!("avx2");
        let has_avx512 = std::arch::is_x86_feature_detected!("avx512f");
        let copies: [(bool, usize, Copy); 7] = [
            (true, 0, x86::plain as Copy),
            (has_avx2, 0, x86::stream_256 as Copy),
            (has_avx512, 0, x86::stream_512 as Copy),
            (has_avx2, 0, x86::vectors_256 as Copy),
            (has_avx512, 0, x86::vectors_512 as Copy),
            (has_avx2, 0, x86::gather as Copy),
            (has_avx2, GATHER_FROM_BYTES, x86::page_then_rest as Copy),
        ];
        let n = 2 * GATHER_FROM_BYTES;
        let src: Vec<u8> = (0..n).map(|i| (i * 11 + i / 253) as u8).collect();
        let small = [0, 63, 64, 127, 128, 129, STREAM_FROM_BYTES, 2 * STREAM_FROM_BYTES + 191];
        let lens = small.into_iter().chain([GATHER_FROM_BYTES, GATHER_FROM_BYTES + 16_777]);
        for (_, least, copy) in copies.into_iter().filter(|(has, ..)| *has) {
            for (from, to) in [(0, 0), (3, 0), (0, 5), (63, 65)] {
                for len in lens.clone().filter(|len| *len >= least) {
                    let mut dst = vec![0xEE; n];
                    // SAFETY: both ranges lie inside vectors of n bytes; the CPU has what it takes.
                    unsafe { copy(src[from..].as_ptr(), dst[to..].as_mut_ptr(), len) };
                    assert_eq!(&dst[to..to + len], &src[from..from + len]);
                    assert!(dst[..to].iter().chain(&dst[to + len..]).all(|b| *b == 0xEE));
                }
            }
        }
    }
}
