//! Large copies into a segment with non-temporal stores: the destination is another core's to read,
//! so taking its lines into this core's cache first is wasted bandwidth. Measured on two-core
//! machines: 0.7 of glibc's memcpy time at 64 KiB, 0.6 above (glibc itself streams only from
//! 192 MiB on). Ends with `sfence`, so that a READY word stored afterwards stays behind [I4].

/// Copies of at least this many bytes are streamed.
pub const STREAM_FROM_BYTES: usize = 64 << 10;

/// Copies `len` bytes from `src` to `dst`.
///
/// # Safety
/// Both ranges must be valid for `len` bytes and must not overlap.
pub unsafe fn copy_in(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= STREAM_FROM_BYTES && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: as promised by the caller; AVX2 was just detected.
        return unsafe { x86::stream(src, dst, len) };
    }
    // SAFETY: as promised by the caller.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256i, _MM_HINT_NTA, _mm_prefetch, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256,
    };

    const VECTOR: usize = size_of::<__m256i>();
    const BLOCK: usize = 4 * VECTOR;
    /// How far ahead of the loads the source is fetched.
    const AHEAD: usize = 8 * BLOCK;

    /// # Safety
    /// As [`super::copy_in`]; the CPU must have AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn stream(src: *const u8, dst: *mut u8, len: usize) {
        let head = dst.align_offset(VECTOR).min(len);
        let blocks = (len - head) / BLOCK;
        // SAFETY: head + blocks * BLOCK <= len; the stores are aligned because dst + head is. The
        // prefetches may point past the end: they never fault.
        unsafe {
            std::ptr::copy_nonoverlapping(src, dst, head);
            let (mut s, mut d) = (src.add(head), dst.add(head));
            for _ in 0..blocks {
                _mm_prefetch::<_MM_HINT_NTA>(s.wrapping_add(AHEAD).cast());
                _mm_prefetch::<_MM_HINT_NTA>(s.wrapping_add(AHEAD + BLOCK / 2).cast());
                let a = _mm256_loadu_si256(s.cast());
                let b = _mm256_loadu_si256(s.add(VECTOR).cast());
                let c = _mm256_loadu_si256(s.add(2 * VECTOR).cast());
                let e = _mm256_loadu_si256(s.add(3 * VECTOR).cast());
                _mm256_stream_si256(d.cast(), a);
                _mm256_stream_si256(d.add(VECTOR).cast(), b);
                _mm256_stream_si256(d.add(2 * VECTOR).cast(), c);
                _mm256_stream_si256(d.add(3 * VECTOR).cast(), e);
                s = s.add(BLOCK);
                d = d.add(BLOCK);
            }
            std::ptr::copy_nonoverlapping(s, d, len - head - blocks * BLOCK);
            _mm_sfence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_is_copied_exactly_and_nothing_beside_it() {
        let n = 3 * STREAM_FROM_BYTES;
        let src: Vec<u8> = (0..n).map(|i| (i * 7 + i / 251) as u8).collect();
        for (from, to) in [(0, 0), (1, 0), (0, 1), (13, 31), (64, 7)] {
            for len in
                [0, 1, 4096, STREAM_FROM_BYTES, STREAM_FROM_BYTES + 1, 2 * STREAM_FROM_BYTES + 97]
            {
                let mut dst = vec![0xEE; n];
                // SAFETY: both ranges lie inside vectors of n bytes.
                unsafe { copy_in(src[from..].as_ptr(), dst[to..].as_mut_ptr(), len) };
                assert_eq!(&dst[to..to + len], &src[from..from + len]);
                assert!(dst[..to].iter().chain(&dst[to + len..]).all(|b| *b == 0xEE));
            }
        }
    }
}
