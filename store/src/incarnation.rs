//! Random identities: the incarnation of a rank between one start and the next [I3] [I17], and the
//! boot id of a host.

use crate::random::{OsRandom, Random};

/// A random number from the kernel that is never 0, such as a new incarnation [I3].
pub fn random_u64() -> u64 {
    OsRandom.u64()
}

/// First 8 bytes of the kernel's boot id. Two processes with the same one run on the same kernel,
/// and share CLOCK_BOOTTIME and shared memory. 0 if the kernel does not provide it.
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
        let mut seen: Vec<u64> = (0..1000).map(|_| random_u64()).collect();
        assert!(!seen.contains(&0));
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 1000);
    }

    #[test]
    fn the_boot_id_is_its_first_eight_bytes() {
        let id = parse_boot_id("6f1c2b9a-4c3d-4e5f-8a9b-0c1d2e3f4a5b\n");
        assert_eq!(id, Some(0x6f1c_2b9a_4c3d_4e5f));
        assert_eq!(parse_boot_id("6f1c"), None);
        assert_eq!(boot_id(), boot_id());
    }
}
