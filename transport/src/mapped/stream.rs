//! Copies that bypass the cache, for payloads that another core or a NIC will read. On machines
//! without such stores it is a plain copy.

/// Copies `len` bytes between two store fences: what was stored before is seen before them, and a
/// word stored afterwards never without them [I4].
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` bytes, and the ranges may not overlap.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;
    // Whole lines only: a partly streamed line costs a read of memory.
    let head = dst.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let tail = len - head - lines * LINE;
    // SAFETY: head + 64 * lines + tail == len, so every access is inside what the caller promised;
    // `dst + head` is 64-byte aligned as the streaming stores demand; SSE2 is part of x86-64.
    unsafe {
        // Streaming stores may overtake ordinary ones.
        _mm_sfence();
        std::ptr::copy_nonoverlapping(src, dst, head);
        let (mut s, mut d) = (src.add(head), dst.add(head));
        for _ in 0..lines {
            let from = s.cast::<__m128i>();
            let to = d.cast::<__m128i>();
            let (a, b) = (_mm_loadu_si128(from), _mm_loadu_si128(from.add(1)));
            let (c, e) = (_mm_loadu_si128(from.add(2)), _mm_loadu_si128(from.add(3)));
            _mm_stream_si128(to, a);
            _mm_stream_si128(to.add(1), b);
            _mm_stream_si128(to.add(2), c);
            _mm_stream_si128(to.add(3), e);
            s = s.add(LINE);
            d = d.add(LINE);
        }
        std::ptr::copy_nonoverlapping(s, d, tail);
        _mm_sfence();
    }
}

/// Copies `len` bytes; later release stores order it.
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` bytes, and the ranges may not overlap.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: what the caller promised.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) };
}
