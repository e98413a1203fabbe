//! Random identities: who a rank is between one start and the next [I3] [I17]. Nothing here may be
//! derived from time, pid or address: those repeat.

use zerocopy::IntoBytes;

/// A random number that is never 0. Panics if the kernel gives no random bytes: without them no
/// incarnation would be safe to use.
pub fn random_u64() -> u64 {
    /// More zeros in a row than this mean a broken generator, not chance.
    const TRIES: usize = 4;
    for _ in 0..TRIES {
        match getrandom::u64() {
            Ok(0) => {}
            Ok(n) => return n,
            Err(e) => panic!("the kernel gives no random bytes ({e}); see getrandom(2)"),
        }
    }
    panic!("the kernel's random generator returned {TRIES} zeros in a row")
}

/// As many random numbers at once, by one system call; a 0 among them is as likely as any other.
/// Panics as [`random_u64`]. Not to be kept across a fork: the child would have the same.
pub fn random_words<const N: usize>() -> [u64; N] {
    let mut words = [0; N];
    if let Err(e) = getrandom::fill(words.as_mut_bytes()) {
        panic!("the kernel gives no random bytes ({e}); see getrandom(2)");
    }
    words
}

/// A new incarnation: random, never 0, never repeated [I3].
pub fn new_incarnation() -> u64 {
    random_u64()
}

/// First 8 bytes of the kernel's boot id: two processes with the same one share a running kernel,
/// and with it CLOCK_BOOTTIME and shared memory. 0 where the kernel does not tell.
pub fn boot_id() -> u64 {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .ok()
        .and_then(|text| parse_boot_id(&text))
        .unwrap_or(0)
}

fn parse_boot_id(text: &str) -> Option<u64> {
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    (digits.len() == 16).then(|| u64::from_str_radix(&digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i3_incarnations_are_not_zero_and_do_not_repeat() {
        let mut seen: Vec<u64> = (0..1000).map(|_| new_incarnation()).collect();
        assert!(!seen.contains(&0));
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 1000);
    }

    #[test]
    fn random_words_differ() {
        let mut words = random_words::<64>();
        words.sort_unstable();
        assert!(words.windows(2).all(|w| w[0] != w[1]));
    }

    #[test]
    fn the_boot_id_is_its_first_eight_bytes() {
        let id = parse_boot_id("6f1c2b9a-4c3d-4e5f-8a9b-0c1d2e3f4a5b\n");
        assert_eq!(id, Some(0x6f1c_2b9a_4c3d_4e5f));
        assert_eq!(parse_boot_id("6f1c"), None);
        assert_eq!(boot_id(), boot_id());
    }
}
