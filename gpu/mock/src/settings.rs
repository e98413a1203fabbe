//! What the environment asks for, read once.

use crate::Outcome;
use std::collections::HashMap;
use std::env::var;
use std::io::Write;
use std::str::FromStr;
use std::sync::{LazyLock, Mutex, PoisonError};

/// One call that is to fail: its symbol, which one (None: each), and with which error.
struct Failure {
    symbol: String,
    nth: Option<u64>,
    code: u32,
}

struct Settings {
    failure: Option<Failure>,
    log: Option<Mutex<std::fs::File>>,
    attributes: HashMap<u32, i32>,
}

static SETTINGS: LazyLock<Settings> = LazyLock::new(|| Settings {
    failure: var("MOCK_CUDA_FAIL").ok().and_then(|text| parse_failure(&text)),
    log: var("MOCK_CUDA_LOG").ok().and_then(|path| {
        std::fs::File::options().create(true).append(true).open(path).ok().map(Mutex::new)
    }),
    attributes: var("MOCK_CUDA_ATTRIBUTES").map(|text| parse_attributes(&text)).unwrap_or_default(),
});
/// Calls of the symbol that is to fail.
static SEEN: Mutex<u64> = Mutex::new(0);

fn parse_failure(text: &str) -> Option<Failure> {
    let mut parts = text.split(':');
    let symbol = parts.next()?.to_string();
    let numbers: Vec<u64> = parts.filter_map(|part| part.parse().ok()).collect();
    let (nth, code) = match numbers[..] {
        [code] => (None, code),
        [nth, code] => (Some(nth), code),
        _ => return None,
    };
    Some(Failure { symbol, nth, code: code as u32 })
}

fn parse_attributes(text: &str) -> HashMap<u32, i32> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.filter_map(|(key, value)| Some((key.parse().ok()?, value.parse().ok()?))).collect()
}

/// A number of the environment.
pub fn number<T: FromStr>(name: &str, default: T) -> T {
    var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// An attribute that the environment overrides.
pub fn attribute(number: u32) -> Option<i32> {
    SETTINGS.attributes.get(&number).copied()
}

/// Appends a call to the log.
pub fn log(symbol: &str) {
    if let Some(file) = &SETTINGS.log {
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        // A log that cannot be written fails the test that reads it.
        let _ = writeln!(file, "{symbol}");
    }
}

/// The error that a test wants of this call.
pub fn injected(symbol: &str) -> Outcome {
    let Some(failure) = SETTINGS.failure.as_ref().filter(|f| f.symbol == symbol) else {
        return Ok(());
    };
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    *seen += 1;
    if failure.nth.is_none_or(|nth| nth == *seen) { Err(failure.code) } else { Ok(()) }
}
