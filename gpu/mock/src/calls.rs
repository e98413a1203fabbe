//! What every call has in common: it is logged, it fails where a test asks for it, and it needs
//! the process that called `cuInit`, and most need a current context.

use crate::{Outcome, code, context, settings};
use std::sync::atomic::{AtomicU32, Ordering};

/// Process that called `cuInit`; 0 before.
static INITIALISED_BY: AtomicU32 = AtomicU32::new(0);

/// What a call needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// `cuInit` in this process.
    Init,
    /// A current context, too.
    Context,
}

/// Runs a call.
pub fn run(symbol: &'static str, needs: Needs, body: impl FnOnce() -> Outcome) -> u32 {
    settings::log(symbol);
    let done = settings::injected(symbol)
        .and_then(|()| if needs == Needs::Nothing { Ok(()) } else { initialised() })
        .and_then(|()| if needs == Needs::Context { context::check_current() } else { Ok(()) })
        .and_then(|()| body());
    done.err().unwrap_or(0)
}

/// `cuInit` was called.
pub fn initialise() {
    INITIALISED_BY.store(std::process::id(), Ordering::SeqCst);
}

/// A child made by fork cannot use the driver, as with the real one.
fn initialised() -> Outcome {
    let same = INITIALISED_BY.load(Ordering::SeqCst) == std::process::id();
    if same { Ok(()) } else { Err(code::NOT_INITIALIZED) }
}

/// Defines calls of the library. Their pointers are the caller's to get right, as with the real
/// library.
macro_rules! driver_calls {
    ($($needs:ident $symbol:ident($($arg:ident: $type:ty),*) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "a symbol of CUDA")]
        pub unsafe extern "C" fn $symbol($($arg: $type),*) -> u32 {
            $crate::calls::run(stringify!($symbol), $crate::calls::Needs::$needs, || $body)
        }
    )*};
}
pub(crate) use driver_calls;

/// Stores a result where the caller wants it.
pub fn give<T>(into: *mut T, value: T) -> Outcome {
    if into.is_null() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: the caller of the library passes a pointer to a value of this type.
    unsafe { into.write(value) };
    Ok(())
}
